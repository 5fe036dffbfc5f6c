"""Arrays stored as `.npy` files: they come back unchanged, files of NumPy are read, and invalid cells raise."""

from __future__ import annotations

import contextlib
import io
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_cells import NUMBERS, Column, array, bits, blobs, columns, outs
from hypothesis import given
from hypothesis import strategies as st

from penstock._blobs import Blobs
from penstock.codecs import Npy, named
from penstock.errors import ArgumentError
from penstock.schema import CellProblem, Field

FIELD = Field("x", np.float32, (2, 3), Npy())


def saved(cell: npt.NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    """Return what NumPy writes, in this version or in the one that it chooses."""
    file = io.BytesIO()
    np.lib.format.write_array(file, cell, version=version, allow_pickle=False)
    return file.getvalue()


def headed(text: str, values: bytes = b"", version: int = 1) -> bytes:
    """Return a `.npy` file with this text as its header."""
    width = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(width, "little") + text.encode() + values


def decoded(field: Field, cells: list[bytes | None]) -> npt.NDArray[Any]:
    """Return cells of a fixed shape as one array, in which nulls are zero."""
    out = outs(field, len(cells))["own"]
    Npy().decode_into(field, Blobs.of(pa.array(cells, pa.binary())), out)
    return out


def problem(field: Field, cells: list[bytes], max_cell_bytes: int = 1 << 20) -> tuple[int, str]:
    """Return the row and the message of the first cell that raises, which are the same in both ways of decoding."""
    given = replace(Blobs.of(pa.array(cells, pa.binary())), max_cell_bytes=max_cell_bytes)
    with pytest.raises(CellProblem) as into:
        Npy().decode_into(field, given, outs(field, len(cells))["own"])
    with pytest.raises(CellProblem) as each:
        Npy().decode_each(field, given)
    assert (into.value.row, str(into.value)) == (each.value.row, str(each.value))
    return each.value.row, str(each.value)


@given(columns(Npy()))
def test_arrays_of_one_shape_come_back_as_they_were(column: Column) -> None:
    """Cells of any dtype and order fill the rows of any output array. Null rows are left as they are."""
    for out in outs(column.field, len(column.cells)).values():
        before = out.copy()
        Npy().decode_into(column.field, column.cells, out)

        rows = [before[row, ...] if cell is None else cell for row, cell in enumerate(column.expected)]
        assert bits([out[row, ...] for row in range(len(out))]) == bits(rows)


@given(columns(Npy(), (*NUMBERS, "U", "S"), most_differing=3))
def test_arrays_of_differing_shapes_come_back_as_they_were(column: Column) -> None:
    """Arrays of different shapes come back unchanged, and nulls as None."""
    found = Npy().decode_each(column.field, column.cells)

    assert bits(found) == bits(column.expected)


@given(st.sampled_from(NUMBERS), st.lists(st.integers(0, 3), max_size=3))
def test_the_bytes_are_those_of_numpy(dtype: str, shape: list[int]) -> None:
    """A cell is what `numpy.save` writes, and `numpy.load` reads it."""
    cell = array(np.random.default_rng(0), np.dtype(dtype), shape)
    file = io.BytesIO()
    np.save(file, cell)

    found = Npy().encode(Field("x", dtype, shape, Npy()), cell)

    assert found == file.getvalue()
    assert bits([np.load(io.BytesIO(found))]) == bits([cell])


def test_arrays_in_fortran_order_are_stored_in_c_order() -> None:
    """Cells of one shape have the same header, whatever their order in memory."""
    cell = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))

    assert Npy().encode(FIELD, cell) == saved(np.ascontiguousarray(cell))


def test_single_values_are_arrays_of_no_dimension() -> None:
    """Scalars of Python and NumPy are decoded to arrays of shape ()."""
    field = Field("x", str, (), Npy())
    stored = Npy().encode_column(field, ["語", np.str_("ab"), None])
    found = Npy().decode_each(field, Blobs.of(stored))

    assert bits(found) == bits([np.array("語"), np.array("ab"), None])
    assert stored.type == pa.binary()


@given(st.data())
def test_all_versions_and_orders_of_numpy_are_read(data: st.DataObject) -> None:
    """The cells of a batch may differ in version, byte order and memory order."""
    dtype = np.dtype(data.draw(st.sampled_from(["i4", "f8", "c8", "U3", "S2", "M8[s]", "?"])))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    field = Field("x", dtype, (2, 3), Npy())
    expected, cells = [], []
    for _ in range(data.draw(st.integers(1, 12))):
        cell = array(random, dtype, (2, 3))
        expected.append(cell)
        order: Any = data.draw(st.sampled_from("CF"))
        written = np.array(cell, dtype.newbyteorder(data.draw(st.sampled_from("<>"))), order=order)
        cells.append(saved(written, data.draw(st.sampled_from([(1, 0), (2, 0), (3, 0)]))))

    assert bits(list(decoded(field, [*cells, None])[:-1])) == bits(expected)
    assert bits(Npy().decode_each(field, Blobs.of(pa.array(cells)))) == bits(expected)


def test_batches_of_many_headers_are_read() -> None:
    """Headers that differ only in their spaces are all read."""
    values = np.arange(6, dtype="<f4").tobytes()
    words = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}"
    cells: list[bytes | None] = [headed(words + " " * (number % 15), values) for number in range(40)]

    found = decoded(FIELD, cells)

    assert (found == np.arange(6).reshape(2, 3)).all()


@pytest.mark.parametrize("rows", [np.arange(400), np.arange(1, 400, 3), np.random.default_rng(0).permutation(400)], ids=len)
@pytest.mark.parametrize("chunks", [[], [150]], ids=["one chunk", "two chunks"])
def test_batches_of_many_cells_are_read(rows: npt.NDArray[np.int64], chunks: list[int]) -> None:
    """Many cells are read in any order, with and without nulls."""
    cells = [np.full((2, 3), number, np.float32) for number in range(400)]
    full = blobs(Npy(), FIELD, cells, chunks).take(rows)
    with_nulls = blobs(Npy(), FIELD, [cell if number % 5 else None for number, cell in enumerate(cells)], chunks).take(rows)
    found, found_with_nulls = outs(FIELD, len(rows))["own"], outs(FIELD, len(rows))["own"]

    Npy().decode_into(FIELD, full, found)
    Npy().decode_into(FIELD, with_nulls, found_with_nulls)

    assert found[:, 1, 2].tolist() == rows.tolist()
    assert found_with_nulls[:, 0, 0].tolist() == np.where(rows % 5, rows, 0).tolist()


def test_batches_of_many_cells_of_differing_lengths_are_read() -> None:
    """Cells of one shape may have headers of different lengths."""
    words = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}"
    cells = [headed(words + " " * (number * number % 3), np.full(6, number, "<f4").tobytes()) for number in range(600)]

    found = decoded(FIELD, [*cells])

    assert found[:, 1, 1].tolist() == list(range(600))


def test_large_cells_are_read() -> None:
    """Cells that are copied one by one are read in any order, also beside a cell with another header."""
    field = Field("x", np.int32, (50, 60), Npy())
    cells = [np.full((50, 60), number, np.int32) for number in range(5)]
    stored = blobs(Npy(), field, [*cells, None], [2, 1])
    turned = Blobs.of(pa.array([saved(np.asfortranarray(cells[1] + np.arange(60, dtype=np.int32)))]))
    out = np.zeros((8, 50, 60), np.int32)

    Npy().decode_into(field, Blobs.joined([stored, turned]).take(np.array([3, 6, 5, 0, 1, 4, 2, 3])), out)

    assert out[:, 0, 0].tolist() == [3, 1, 0, 0, 1, 4, 2, 3]
    assert out[1, 7].tolist() == list(range(1, 61))


def test_headers_of_python_2_are_read_without_a_warning() -> None:
    """Python 2 wrote sizes as long integers."""
    cell = headed("{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }", np.ones((2, 3), "<f4").tobytes())

    assert decoded(FIELD, [cell]).tolist() == [[[1.0] * 3] * 2]


def test_decoded_arrays_can_be_written_to() -> None:
    """Writing to decoded arrays does not change Arrow's memory."""
    stored = Npy().encode_column(FIELD, [np.zeros((2, 3), np.float32)])
    before = stored.to_pylist()

    for cell in (*Npy().decode_each(FIELD, Blobs.of(stored)), Npy().decode(FIELD, memoryview(before[0]))):
        cell[:] = 7

    assert stored.to_pylist() == before


def test_text_without_letters_is_read() -> None:
    """An array of text of length zero is read, although it takes no bytes."""
    cell = saved(np.zeros(3, [("a", "U0"), ("b", "i4")])["a"])

    (found,) = Npy().decode_each(Field("x", str, (None,), Npy()), Blobs.of(pa.array([cell])))

    assert found.tolist() == ["", "", ""]


ONES = np.ones((2, 3), np.float32)
GOOD = saved(ONES)
SAYS = "its .npy header says"


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (b"", "it starts with b''; expected a .npy file, which starts with b'\\x93NUMPY'. Check what wrote it."),
        (
            b"PK\3\4....",
            "it starts with b'PK\\x03\\x04..'; expected a .npy file, which starts with b'\\x93NUMPY'. Check what wrote it.",
        ),
        (
            b"\x93NUMPY\x04\x00" + GOOD[8:],
            "it is .npy version 4.0; expected one of 1.0, 2.0, 3.0. Rewrite it with numpy.save.",
        ),
        (
            GOOD[:7],
            "it is truncated: it has 7 bytes, and its .npy header alone has 10. Rewrite it.",
        ),
        (
            GOOD[:100],
            "it is truncated: it has 100 bytes, and its .npy header alone has 128. Rewrite it.",
        ),
        (
            GOOD[:-1],
            f"{SAYS} float32 (2, 3), so it should have 152 bytes, but it has 151. It is truncated: rewrite it.",
        ),
        (GOOD + b"!", f"{SAYS} float32 (2, 3), so it should have 152 bytes, but it has 153. Check what wrote it."),
        (
            headed(" " * 20_000, version=2),
            "its .npy header has 20000 bytes; the limit is 10000. Check what wrote it.",
        ),
        (
            headed("{'descr': '<f4', 'fortran_order': False, 'shape': (2, True)}"),
            "its .npy header has the shape (2, True); expected non-negative sizes. Check what wrote it.",
        ),
        (
            headed("{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3)}"),
            "its .npy header has the shape (2, -3); expected non-negative sizes. Check what wrote it.",
        ),
        (
            headed("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4611686018427387904)}"),
            f"{SAYS} float32 (0, 4611686018427387904), which NumPy cannot hold: array is too big; "
            "`arr.size * arr.dtype.itemsize` is larger than the maximum possible size. Check what wrote it.",
        ),
        (
            headed("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}", b"\x80\x04."),
            "it holds Python objects (object), which are never loaded: that could run code. Rewrite it with a plain dtype.",
        ),
        (
            saved(np.zeros(2, [("a", "<i4"), ("b", "<f4")])),
            "it holds [('a', '<i4'), ('b', '<f4')], which has several parts; expected a plain dtype. Use a column for each "
            "part.",
        ),
        (
            saved(np.zeros((2, 3))),
            "it holds float64 (2, 3), and the schema says float32 (2, 3). Rewrite it, or adopt a schema that fits: "
            "penstock.adopt(url, schema).",
        ),
        (
            saved(np.zeros((3, 2), ">f4")),
            "it holds float32 (3, 2), and the schema says float32 (2, 3). Rewrite it, or adopt a schema that fits: "
            "penstock.adopt(url, schema).",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else value[:12],
)
def test_invalid_cells_raise(cell: bytes, message: str) -> None:
    """The error of the first invalid cell says what is wrong, what was expected and what to do."""
    assert problem(FIELD, [GOOD, cell, b"worse", GOOD]) == (1, message)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "{'descr': '<f4'}",
        "{'descr': 'no such', 'fortran_order': False, 'shape': (2, 3)}",
        "{'descr': '<f4', 'fortran_order': 3, 'shape': (2, 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [2, 3]}",
        "{'descr': __import__('os'), 'fortran_order': False, 'shape': (2, 3)}",
        "{[]: 1}",
        "(" * 1000,
        "{'descr': '<f4',\n  'unfinished",
    ],
)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_that_cannot_be_read_raise(text: str, version: int) -> None:
    """The error shows the beginning of the header."""
    message = f"its .npy header {text[:80].encode()!r} is not valid; expected a dtype, an order and a shape. "

    assert problem(FIELD, [headed(text, version=version)]) == (0, message + "Check what wrote it.")


@pytest.mark.parametrize("dtype", ["<f4", "<U0"])
def test_huge_claims_take_no_memory(dtype: str) -> None:
    """A header that declares more than is allowed raises before memory is allocated."""
    cell = headed(f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': (1099511627776, 3)}}")
    given = Blobs.of(pa.array([cell]))
    tracemalloc.start()
    try:
        with pytest.raises(
            CellProblem, match=r"bytes; the limit for a cell is 268435456\. Check what wrote it, or raise it: \.using"
        ):
            Npy().decode_each(Field("x", "f4" if dtype == "<f4" else "U", (None, 3), Npy()), given)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20


def test_cells_larger_than_allowed_raise() -> None:
    """The limit counts the bytes of the values. Cells of exactly the limit are read."""
    given = Blobs.of(pa.array([GOOD]))

    assert len(Npy().decode_each(FIELD, replace(given, max_cell_bytes=24))) == 1
    assert problem(FIELD, [GOOD], max_cell_bytes=23) == (
        0,
        f"{SAYS} float32 (2, 3), which takes 24 bytes; the limit for a cell is 23. Check what wrote it, or raise it: "
        ".using(max_cell_bytes=24).",
    )


@given(st.data())
def test_damaged_cells_are_decoded_or_raise(data: st.DataObject) -> None:
    """Changed, added or missing bytes give an array that fits the field, or raise `CellProblem`."""
    cell = bytearray(saved(ONES, data.draw(st.sampled_from([(1, 0), (2, 0), (3, 0)]))))
    for _ in range(data.draw(st.integers(1, 4))):
        cell[data.draw(st.integers(0, len(cell) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(cell[: data.draw(st.integers(0, len(cell)))]) + data.draw(st.binary(max_size=20))

    for field in (FIELD, Field("x", np.float32, (None, None), Npy())):
        found = [ONES]
        with contextlib.suppress(CellProblem):
            found = Npy().decode_each(field, Blobs.of(pa.array([broken])))

        assert field.fits(found[0])


@pytest.mark.parametrize("dtype", [Decimal, object])
def test_dtypes_that_numpy_would_pickle_raise(dtype: Any) -> None:
    """A field of such a dtype raises when it is made."""
    with pytest.raises(ArgumentError) as error:
        Field("x", dtype, (3,), Npy())

    assert str(error.value) == (
        "Field 'x' has dtype object, but Npy stores arrays of numbers, times, text or bytes. Use another dtype, or "
        "penstock.codecs.Scalar() for single values."
    )


def test_dtypes_of_other_libraries_raise() -> None:
    """A `.npy` file would store values of such a dtype as bytes."""
    rational = pytest.importorskip("numpy._core._rational_tests").rational

    with pytest.raises(ArgumentError, match="Field 'x' has dtype rational, but Npy stores arrays of numbers"):
        Field("x", rational, (3,), Npy())


def test_the_codec_is_found_by_its_name() -> None:
    """The stored name and options make the same codec again."""
    assert named("npy", Npy().options()) == Npy()


@pytest.mark.parametrize(
    ("name", "column", "field"),
    [
        ("legacy-0.4.0", "matrix", Field("matrix", np.float32, (32, 16, 3), Npy())),
        ("legacy-0.7.6", "matrix_uint32", Field("matrix_uint32", np.uint32, (None, None, None), Npy())),
        ("legacy-0.7.6", "string_array_nullable", Field("string_array_nullable", str, (None,), Npy(), nullable=True)),
        ("modern-0.13.1-seq", "cplx", Field("cplx", np.complex64, (2, 2), Npy())),
    ],
)
def test_cells_of_petastorm_are_read(corpus: Callable[[str], Path], name: str, column: str, field: Field) -> None:
    """Cells of Petastorm's `NdarrayCodec` are decoded to what NumPy loads from them."""
    for path in sorted(corpus(f"petastorm/{name}").rglob("*.parquet")):
        stored = pq.ParquetFile(path).read(columns=[column])[column].combine_chunks()
        expected = [None if cell is None else np.load(io.BytesIO(cell)) for cell in stored.to_pylist()]

        found = Npy().decode_each(field, Blobs.of(stored))

        assert bits(found) == bits(expected)
