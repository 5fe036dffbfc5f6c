"""Arrays stored as compressed `.npz` files: they come back unchanged, and invalid cells and zip bombs raise."""

from __future__ import annotations

import contextlib
import io
import tracemalloc
import zipfile
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
from array_cells import NUMBERS, Column, array, bits, columns, outs
from hypothesis import given
from hypothesis import strategies as st

from penstock._blobs import Blobs
from penstock.codecs import Npz, named
from penstock.errors import ArgumentError
from penstock.schema import CellProblem, Field

FIELD = Field("x", np.float32, (2, 3), Npz())
ONES = np.ones((2, 3), np.float32)


def saved(**arrays: npt.NDArray[Any]) -> bytes:
    """Return what NumPy writes."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip file with these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return file.getvalue()


def npy(cell: npt.NDArray[Any]) -> bytes:
    """Return the bytes of a `.npy` file."""
    file = io.BytesIO()
    np.save(file, cell)
    return file.getvalue()


def changed(cell: bytes, offset: int, value: bytes) -> bytes:
    """Return a zip file with other bytes in the first entry of its directory."""
    at = cell.index(b"PK\x01\x02") + offset
    return cell[:at] + value + cell[at + len(value) :]


def problem(cells: list[bytes], max_cell_bytes: int = 1 << 20) -> tuple[int, str]:
    """Return the row and the message of the first cell that raises, which are the same in both ways of decoding."""
    given = replace(Blobs.of(pa.array(cells, pa.binary())), max_cell_bytes=max_cell_bytes)
    with pytest.raises(CellProblem) as into:
        Npz().decode_into(FIELD, given, outs(FIELD, len(cells))["own"])
    with pytest.raises(CellProblem) as each:
        Npz().decode_each(FIELD, given)
    assert (into.value.row, str(into.value)) == (each.value.row, str(each.value))
    return each.value.row, str(each.value)


@given(columns(Npz()))
def test_arrays_of_one_shape_come_back_as_they_were(column: Column) -> None:
    """Cells of any dtype and order fill the rows of any output array. Null rows are left as they are."""
    out = outs(column.field, len(column.cells))["lent"]
    before = out.copy()

    Npz().decode_into(column.field, column.cells, out)

    rows = [before[row, ...] if cell is None else cell for row, cell in enumerate(column.expected)]
    assert bits([out[row, ...] for row in range(len(out))]) == bits(rows)


@given(columns(Npz(), (*NUMBERS, "U", "S"), most_differing=3))
def test_arrays_of_differing_shapes_come_back_as_they_were(column: Column) -> None:
    """Arrays of different shapes come back unchanged, and nulls as None."""
    found = Npz().decode_each(column.field, column.cells)

    assert bits(found) == bits(column.expected)


@given(st.sampled_from(NUMBERS), st.lists(st.integers(0, 3), max_size=3))
def test_the_bytes_are_those_of_numpy(dtype: str, shape: list[int]) -> None:
    """A cell is what `numpy.savez_compressed` writes, and `numpy.load` reads it."""
    cell = array(np.random.default_rng(0), np.dtype(dtype), shape)

    found = Npz().encode(Field("x", dtype, shape, Npz()), cell)

    assert found == saved(arr=cell)
    assert bits([np.load(io.BytesIO(found))["arr"]]) == bits([cell])


@pytest.mark.parametrize(
    "cell",
    [
        saved(other=ONES),
        saved(first=ONES + 1, arr=ONES, last=ONES + 2),
        saved(arr=np.asfortranarray(ONES.astype(">f4"))),
        zipped({"arr.npy": npy(ONES)}, zipfile.ZIP_STORED),
        b"before" + saved(arr=ONES),
    ],
    ids=["named otherwise", "among others", "another order", "not compressed", "not at the start"],
)
def test_all_files_that_numpy_reads_are_read(cell: bytes) -> None:
    """The array is the member `arr`, or the only member."""
    (found,) = Npz().decode_each(FIELD, Blobs.of(pa.array([cell])))

    assert bits([found]) == bits([ONES])


def test_decoded_arrays_can_be_written_to() -> None:
    """Decoded arrays are writable."""
    stored = saved(arr=ONES)

    for cell in (*Npz().decode_each(FIELD, Blobs.of(pa.array([stored]))), Npz().decode(FIELD, memoryview(stored))):
        cell[:] = 7

        assert cell.tolist() == [[7.0] * 3] * 2


GOOD = saved(arr=ONES)
NPZ = "expected one member, arr.npy. Rewrite it with numpy.savez_compressed(file, arr=array)."
NO_ZIP = "it is not a zip file: File is not a zip file; expected the bytes of numpy.savez_compressed. Check what wrote it."
MEMBER = "its member 'arr.npy'"


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (b"", NO_ZIP),
        (GOOD[:-5], NO_ZIP),
        (zipped({}), f"it is a zip file with nothing; {NPZ}"),
        (saved(a=ONES, b=ONES), f"it is a zip file with a.npy, b.npy; {NPZ}"),
        (
            zipped({f"{number}.npy": b"" for number in range(7)}),
            f"it is a zip file with 0.npy, 1.npy, 2.npy, 3.npy, 4.npy and 2 more; {NPZ}",
        ),
        (zipped({"arr.txt": b"hello"}), f"it is a zip file with arr.txt; {NPZ}"),
        (
            changed(GOOD, 8, b"\x01"),
            f"{MEMBER} is encrypted; expected no encryption. Rewrite it without a password.",
        ),
        (
            zipped({"arr.npy": npy(ONES)}, zipfile.ZIP_BZIP2),
            f"{MEMBER} has the zip compression method 12; expected deflate (8) or none (0). Rewrite it with "
            f"numpy.savez_compressed.",
        ),
        (
            changed(GOOD, 16, b"\x12\x34\x56\x78"),
            f"{MEMBER} is damaged; expected 152 bytes with checksum 0x78563412. Rewrite it.",
        ),
        (
            zipped({"arr.npy": b"no array"}),
            "it starts with b'no arr'; expected a .npy file, which starts with b'\\x93NUMPY'. Check what wrote it.",
        ),
        (
            saved(arr=ONES.astype(np.float64)),
            "it holds float64 (2, 3), and the schema says float32 (2, 3). Rewrite it, or adopt a schema that fits: "
            "penstock.adopt(url, schema).",
        ),
    ],
    ids=range(11),
)
def test_invalid_cells_raise(cell: bytes, message: str) -> None:
    """The error of the first invalid cell says what is wrong, what was expected and what to do."""
    assert problem([GOOD, cell, b"worse", GOOD]) == (1, message)


def test_bytes_that_cannot_be_inflated_raise() -> None:
    """The error has the message of zlib."""
    at = GOOD.index(b"arr.npy") + 7 + 20  # the deflated bytes start after the name and the zip64 fields
    broken = GOOD[:at] + b"\xff" * 8 + GOOD[at + 8 :]

    row, error_text = problem([broken])

    assert row == 0
    assert error_text.startswith(f"{MEMBER} is damaged: Error -3 while decompressing data: ")
    assert error_text.endswith(". Rewrite it.")


def test_python_objects_are_never_loaded() -> None:
    """An array of objects raises, because its values are pickles."""
    header = "{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}"
    file = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"\x80\x04."

    assert problem([zipped({"arr.npy": file})]) == (
        0,
        "it holds Python objects (object), which are never loaded: that could run code. Rewrite it with a plain dtype.",
    )


@pytest.mark.parametrize("claimed", [64 << 20, 152, 0])
def test_bombs_take_no_memory(claimed: int) -> None:
    """A member that declares more than is allowed raises, and inflating stops at the declared size."""
    bomb = changed(zipped({"arr.npy": bytes(64 << 20)}), 24, claimed.to_bytes(4, "little"))
    tracemalloc.start()
    try:
        row, error_text = problem([bomb])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert row == 0
    assert peak < 4 << 20
    if claimed > 1 << 20:
        limit = "the limit for a cell is 1048576. Check what wrote it, or raise it: .using(max_cell_bytes=67108864)."
        assert error_text == f"{MEMBER} declares 67108864 bytes; {limit}"
    else:
        assert error_text.startswith(f"{MEMBER} is damaged; expected {claimed} bytes with checksum ")


@given(st.data())
def test_damaged_cells_are_decoded_or_raise(data: st.DataObject) -> None:
    """Changed, added or missing bytes give the array that was written, or raise `CellProblem`."""
    cell = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        cell[data.draw(st.integers(0, len(cell) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(cell[: data.draw(st.integers(0, len(cell)) | st.just(len(cell)))]) + data.draw(st.binary(max_size=20))

    found = [ONES]
    with contextlib.suppress(CellProblem):
        found = Npz().decode_each(FIELD, Blobs.of(pa.array([broken])))

    assert bits(found) == bits([ONES])


def test_dtypes_that_numpy_would_pickle_raise() -> None:
    """A field of such a dtype raises when it is made."""
    with pytest.raises(ArgumentError) as error:
        Field("x", Decimal, (3,), Npz())

    assert str(error.value) == (
        "Field 'x' has dtype object, but Npz stores arrays of numbers, times, text or bytes. Use another dtype, or "
        "penstock.codecs.Scalar() for single values."
    )


def test_the_codec_is_found_by_its_name() -> None:
    """The stored name and options make the same codec again."""
    assert named("npz", Npz().options()) == Npz()


def test_cells_of_petastorm_are_read(corpus: Callable[[str], Path]) -> None:
    """Cells of Petastorm's `CompressedNdarrayCodec` are decoded to what NumPy loads from them."""
    field = Field("boxes", np.float32, (None, 4), Npz(), nullable=True)
    for path in sorted(corpus("petastorm/modern-0.13.1-images").rglob("*.parquet")):
        stored = pq.ParquetFile(path).read(columns=["boxes"])["boxes"].combine_chunks()
        expected = [None if cell is None else np.load(io.BytesIO(cell))["arr"] for cell in stored.to_pylist()]

        found = Npz().decode_each(field, Blobs.of(stored))

        assert bits(found) == bits(expected)
