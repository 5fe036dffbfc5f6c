"""Arrays stored as their bare bytes: they come back unchanged, and another number of bytes raises."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from array_cells import NUMBERS, Column, array, bits, blobs, columns, outs
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._blobs import Blobs
from penstock.codecs import Npy, Npz, Raw, named
from penstock.errors import ArgumentError, DataError
from penstock.schema import CellProblem, Field

FIELD = Field("x", np.float32, (2, 3), Raw())


@given(columns(Raw()))
def test_arrays_of_one_shape_come_back_as_they_were(column: Column) -> None:
    """Cells of any dtype and order fill the rows of any output array. Null rows are left as they are."""
    for out in outs(column.field, len(column.cells)).values():
        before = out.copy()
        Raw().decode_into(column.field, column.cells, out)

        rows = [before[row, ...] if cell is None else cell for row, cell in enumerate(column.expected)]
        assert bits([out[row, ...] for row in range(len(out))]) == bits(rows)


@pytest.mark.parametrize("rows", [np.arange(400), np.arange(1, 400, 3), np.random.default_rng(0).permutation(400)], ids=len)
@pytest.mark.parametrize("chunks", [[], [150]], ids=["one chunk", "two chunks"])
def test_batches_of_many_cells_are_read(rows: npt.NDArray[np.int64], chunks: list[int]) -> None:
    """Many cells are read in any order, with and without nulls."""
    cells = [np.full((2, 3), number, np.float32) for number in range(400)]
    full = blobs(Raw(), FIELD, cells, chunks).take(rows)
    with_nulls = blobs(Raw(), FIELD, [cell if number % 5 else None for number, cell in enumerate(cells)], chunks).take(rows)
    found, found_with_nulls = outs(FIELD, len(rows))["own"], outs(FIELD, len(rows))["own"]

    Raw().decode_into(FIELD, full, found)
    Raw().decode_into(FIELD, with_nulls, found_with_nulls)

    assert found[:, 1, 2].tolist() == rows.tolist()
    assert found_with_nulls[:, 0, 0].tolist() == np.where(rows % 5, rows, 0).tolist()


@given(columns(Raw(), most_differing=1))
def test_arrays_with_one_differing_dimension_come_back_as_they_were(column: Column) -> None:
    """The number of bytes determines the open dimension, and null is None."""
    found = Raw().decode_each(column.field, column.cells)

    assert bits(found) == bits(column.expected)


@given(st.sampled_from(NUMBERS), st.lists(st.integers(0, 3), max_size=3))
def test_the_bytes_are_little_endian_and_in_c_order(dtype: str, shape: list[int]) -> None:
    """Bytes are stored little-endian and in C order, for cells of any order in memory."""
    cell = array(np.random.default_rng(0), np.dtype(dtype), shape)

    found = Raw().encode(Field("x", dtype, shape, Raw()), np.asfortranarray(cell).reshape(shape))

    assert found == cell.astype(cell.dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize(
    ("shape", "storage"),
    [((2, 3), pa.binary(24)), ((), pa.binary(4)), ((None, 3), pa.binary()), ((0, 3), pa.binary())],
)
def test_cells_of_one_size_are_stored_without_their_lengths(shape: tuple[int | None, ...], storage: pa.DataType) -> None:
    """Cells of a fixed size have Arrow's type for that, unless they have no bytes."""
    assert Raw().storage(Field("x", np.float32, shape, Raw())) == storage


def test_decoded_arrays_can_be_written_to() -> None:
    """Writing to decoded arrays does not change Arrow's memory."""
    stored = Raw().encode_column(FIELD, [np.zeros((2, 3), np.float32)])
    before = stored.to_pylist()

    for cell in (*Raw().decode_each(FIELD, Blobs.of(stored)), Raw().decode(FIELD, memoryview(before[0]))):
        cell[:] = 7

    assert stored.to_pylist() == before


SCHEMA = "Check what wrote it, or the dtype and the shape in the schema."


@pytest.mark.parametrize(
    ("shape", "cell", "message"),
    [
        ((2, 3), bytes(23), f"it has 23 bytes; expected 24 bytes for float32 (2, 3). {SCHEMA}"),
        ((2, 3), bytes(48), f"it has 48 bytes; expected 24 bytes for float32 (2, 3). {SCHEMA}"),
        ((2, 3), b"", f"it has 0 bytes; expected 24 bytes for float32 (2, 3). {SCHEMA}"),
        ((), bytes(8), f"it has 8 bytes; expected 4 bytes for float32 (). {SCHEMA}"),
        ((0, 3), bytes(1), f"it has 1 bytes; expected 0 bytes for float32 (0, 3). {SCHEMA}"),
    ],
)
def test_another_number_of_bytes_raises(shape: tuple[int, ...], cell: bytes, message: str) -> None:
    """The error is that of the first wrong cell, with the number of bytes that was expected."""
    field = Field("x", np.float32, shape, Raw())
    good = bytes(4 * int(np.prod(shape)))
    given = Blobs.of(pa.array([None, good, cell, b"worse"]))

    with pytest.raises(CellProblem) as into:
        Raw().decode_into(field, given, outs(field, 4)["own"])
    with pytest.raises(CellProblem) as each:
        Raw().decode_each(field, given)

    assert (into.value.row, str(into.value)) == (2, message)
    assert (each.value.row, str(each.value)) == (2, message)


def test_bytes_that_make_no_whole_rows_raise() -> None:
    """With an open dimension the bytes must be a multiple of the size of its rows."""
    field = Field("x", np.float32, (None, 3), Raw())

    with pytest.raises(CellProblem) as error:
        Raw().decode_each(field, Blobs.of(pa.array([bytes(12), bytes(25)])))

    assert error.value.row == 1
    assert str(error.value) == f"it has 25 bytes; expected a multiple of 12 bytes for float32 (None, 3). {SCHEMA}"


def test_cells_larger_than_allowed_raise() -> None:
    """Cells above the limit raise. Cells of exactly the limit are read."""
    given = Blobs.of(pa.array([bytes(24), bytes(24)]))
    Raw().decode_into(FIELD, replace(given, max_cell_bytes=24), outs(FIELD, 2)["own"])

    with pytest.raises(CellProblem) as error:
        Raw().decode_into(FIELD, replace(given, max_cell_bytes=23), outs(FIELD, 2)["own"])

    allowed = "it has 24 bytes; the limit for a cell is 23. Check what wrote it, or raise it: .using(max_cell_bytes=24)."
    assert str(error.value) == allowed


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        (Decimal, (3,), "Field 'x' has dtype object, but Raw stores values of a fixed size. Use penstock.codecs.Npy(), or a "
            "dtype with a length, for example 'S8'."),
        (str, (3,), "Field 'x' has dtype <U0, but Raw stores values of a fixed size. Use penstock.codecs.Npy(), or a dtype "
            "with a length, for example 'S8'."),
        (bytes, (), "Field 'x' has dtype |S0, but Raw stores values of a fixed size. Use penstock.codecs.Npy(), or a dtype "
            "with a length, for example 'S8'."),
        (np.int8, (None, 2, None), "Field 'x' has shape (None, 2, None), which the number of bytes does not determine. Raw "
            "stores shapes with at most one None, and no 0 together with it. Use penstock.codecs.Npy()."),
        (np.int8, (None, 0), "Field 'x' has shape (None, 0), which the number of bytes does not determine. Raw stores shapes "
            "with at most one None, and no 0 together with it. Use penstock.codecs.Npy()."),
    ],
)  # fmt: skip
def test_fields_that_the_bytes_do_not_determine_raise(dtype: Any, shape: tuple[int | None, ...], message: str) -> None:
    """A field raises when it is made, if bytes alone do not determine its dtype or shape."""
    with pytest.raises(ArgumentError) as error:
        Field("x", dtype, shape, Raw())

    assert str(error.value) == message


def test_the_codec_is_found_by_its_name() -> None:
    """The stored name and options make the same codec again."""
    assert named("raw", Raw().options()) == Raw()


@pytest.mark.parametrize("codec", [Raw(), Npy(), Npz()], ids=repr)
def test_void_arrays_can_be_opened_again(tmp_path: Path, codec: Any) -> None:
    """NumPy rejects its own name of a plain void dtype, so the schema stores another one."""
    cells = [np.frombuffer(bytes([row] * 12), "V4") for row in range(3)]
    schema = ps.Schema("Void", [ps.Field("x", "V4", (3,), codec)])
    ps.write(tmp_path / "t", schema, [{"x": cell} for cell in cells])

    assert [row["x"].tolist() for row in ps.open(tmp_path / "t")] == [cell.tolist() for cell in cells]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(12)])
def test_adjacent_cells_are_viewed_without_a_copy(kind: pa.DataType) -> None:
    """A view shares the memory of the column, also for a slice of it."""
    field = Field("x", np.float32, (3,), Raw())
    arrays = np.arange(30, dtype=np.float32).reshape(10, 3)
    column = pa.array([cell.tobytes() for cell in arrays], kind).slice(2, 5)
    cells = Blobs.of(column)
    found = Raw().view(field, cells)

    assert found is not None
    assert found.tolist() == arrays[2:7].tolist()
    assert np.shares_memory(found, cells.buffers[0])


@pytest.mark.parametrize(
    ("field", "cells"),
    [
        (Field("x", np.uint8, (2,), Raw()), [b"ab", None, b"cd"]),
        (Field("x", np.uint8, (2,), Raw()), [b"ab", b"abc", b"cd"]),
        (Field("x", np.uint8, (3,), Raw()), [b"ab", b"cd"]),
        (Field("x", np.uint8, (0,), Raw()), [b"", b""]),
        (Field("x", np.uint8, (2,), Raw()), []),
    ],
)
def test_other_cells_have_no_view(field: Field, cells: list[bytes | None]) -> None:
    """Cells that are null, differ in size, have another size than the field, or have no bytes are not viewed."""
    assert Raw().view(field, Blobs.of(pa.array(cells, pa.binary()))) is None


def test_cells_at_unaligned_addresses_have_no_view() -> None:
    """Numeric libraries expect numbers at aligned addresses."""
    field = Field("x", np.float32, (1,), Raw())
    odd = pa.array([b"?", *(np.float32(n).tobytes() for n in range(4))], pa.binary()).slice(1)

    assert Raw().view(field, Blobs.of(odd)) is None
    assert Raw().view(field, Blobs.of(pa.array([np.float32(n).tobytes() for n in range(4)]))) is not None


def test_cached_cells_that_are_too_large_for_another_loader_raise(tmp_path: Path) -> None:
    """Cells that one loader has read are checked against the limit of the next loader."""
    schema = ps.Schema("S", [Field("x", np.uint8, (8,), Raw())])
    ps.write(tmp_path / "t", schema, {"x": np.zeros((20, 8), np.uint8)})
    ds = ps.open(tmp_path / "t").shuffle(seed=1).batch(5)

    assert len(list(ps.loader(ds))) == 4
    with pytest.raises(DataError, match="a cell may take 4"):
        list(ps.loader(ds.using(max_cell_bytes=4)))


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("fixed", [True, False])
def test_cells_of_a_table_are_the_same_in_every_epoch(tmp_path: Path, *, shuffled: bool, fixed: bool) -> None:
    """Writing to a batch does not change the rows of later batches and epochs."""
    images = np.random.default_rng(0).integers(0, 256, (100, 4, 6), dtype=np.uint8)
    schema = ps.Schema("S", [Field("id", np.int64), Field("x", np.uint8, (4, 6), Raw(fixed=fixed))])
    ps.write(tmp_path / "t", schema, {"id": np.arange(100), "x": images}, row_group_rows=30)
    ds = ps.open(tmp_path / "t").batch(7, last="uneven")
    loader = ps.loader(ds.shuffle(seed=1) if shuffled else ds)

    for _ in range(3):
        found: dict[int, Any] = {}
        for batch in loader:
            found.update(zip(batch["id"].tolist(), batch["x"].copy(), strict=True))
            if batch["x"].flags.writeable:
                batch["x"][...] = 0
        assert len(found) == 100
        assert all((found[number] == images[number]).all() for number in range(100))
