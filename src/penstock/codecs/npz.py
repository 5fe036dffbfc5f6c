"""Arrays of any shape as compressed `.npz` files: the bytes of `numpy.savez_compressed`."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock._blobs import MAX_CELL_BYTES, Blobs
from penstock.codecs._npy_header import owned, stored_array
from penstock.codecs.npy import check_plain
from penstock.schema import CellCodec, CellProblem, Field

if TYPE_CHECKING:
    import zipfile

__all__ = ["CODECS", "Npz"]

MEMBER = "arr.npy"
MAX_NAMES = 5
ENCRYPTED = 1
STORED, DEFLATED = 0, 8
LOCAL_HEADER_BYTES = 30


@dataclass(frozen=True)
class Npz(CellCodec):
    """Arrays of any shape, each stored as the bytes of `numpy.savez_compressed(file, arr=cell)`.

    Example:
        >>> field = Field("x", np.float32, (None, 2), Npz())
        >>> stored = Npz().encode(field, np.ones((1, 2), np.float32))
        >>> stored[:2], Npz().decode(field, memoryview(stored))
        (b'PK', array([[1., 1.]], dtype=float32))
    """

    name = "npz"
    compressed = True

    def check(self, field: Field) -> None:
        """Check that this codec can store the field.

        Raises:
            ArgumentError: If it holds Python objects, or has a dtype of another library.
        """
        check_plain(field, "Npz")

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return the bytes of `numpy.savez_compressed`."""
        file = io.BytesIO()
        np.savez_compressed(file, arr=np.asarray(cell, field.dtype, order="C"))
        return file.getvalue()

    def decode(self, field: Field, cell: memoryview) -> npt.NDArray[Any]:
        """Return the array in a `.npz` file.

        Raises:
            CellProblem: If it is not valid, or does not fit the field.
        """
        return owned(_array_in(field, 0, cell, MAX_CELL_BYTES))

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode cells into the rows of an array."""
        for row, cell in cells.present():
            out[row] = _array_in(field, row, cell, cells.max_cell_bytes)

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Return a list of decoded cells, with None for nulls."""
        decoded: list[Any] = [None] * len(cells)
        for row, cell in cells.present():
            decoded[row] = owned(_array_in(field, row, cell, cells.max_cell_bytes))
        return decoded


def _array_in(field: Field, row: int, cell: memoryview, max_cell_bytes: int) -> npt.NDArray[Any]:
    """Return the array in a `.npz` file, in its stored byte order."""
    try:
        inflated = _member(bytes(cell), max_cell_bytes)
    except ValueError as error:
        raise CellProblem(row, str(error)) from error
    return stored_array(field, row, memoryview(inflated), max_cell_bytes)


def _member(cell: bytes, max_cell_bytes: int) -> bytes:
    """Return the bytes of the one `.npy` file in a zip file, up to the limit."""
    import zipfile  # which is slow to import

    try:
        with zipfile.ZipFile(io.BytesIO(cell)) as archive:
            members = archive.infolist()
    except Exception as error:
        msg = f"it is not a zip file: {error}; expected the bytes of numpy.savez_compressed. Check what wrote it."
        raise ValueError(msg) from error
    info = _array_member(members)
    member = f"its member {info.filename!r}"
    if info.flag_bits & ENCRYPTED:
        raise ValueError(f"{member} is encrypted; expected no encryption. Rewrite it without a password.")
    if info.compress_type not in (STORED, DEFLATED):
        msg = f"{member} has the zip compression method {info.compress_type}; expected deflate (8) or none (0). "
        raise ValueError(msg + "Rewrite it with numpy.savez_compressed.")
    if info.file_size > max_cell_bytes:
        msg = f"{member} declares {info.file_size} bytes; the limit for a cell is {max_cell_bytes}. Check what wrote it, or "
        raise ValueError(msg + f"raise it: .using(max_cell_bytes={info.file_size}).")
    content = _inflated(cell, info)
    if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
        msg = f"{member} is damaged; expected {info.file_size} bytes with checksum {info.CRC:#010x}. Rewrite it."
        raise ValueError(msg)
    return content


def _array_member(members: list[zipfile.ZipInfo]) -> zipfile.ZipInfo:
    """Return the member with the array: the one with the name that Petastorm uses, or the only one."""
    named = [info for info in members if info.filename == MEMBER]
    for choice in (named, members):
        if len(choice) == 1 and choice[0].filename.endswith(".npy"):
            return choice[0]
    names = ", ".join(info.filename for info in members[:MAX_NAMES]) or "nothing"
    more = f" and {len(members) - MAX_NAMES} more" if len(members) > MAX_NAMES else ""
    msg = f"it is a zip file with {names}{more}; expected one member, {MEMBER}. "
    raise ValueError(msg + "Rewrite it with numpy.savez_compressed(file, arr=array).")


def _inflated(cell: bytes, info: zipfile.ZipInfo) -> bytes:
    """Return the bytes of a member, at most one more than it declares; `zipfile` would inflate all of them."""
    header = cell[info.header_offset : info.header_offset + LOCAL_HEADER_BYTES]
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    start = info.header_offset + LOCAL_HEADER_BYTES + names
    packed = memoryview(cell)[start : start + info.compress_size]
    if info.compress_type == STORED:
        return bytes(packed[: info.file_size + 1])
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, info.file_size + 1)
    except zlib.error as error:
        msg = f"its member {info.filename!r} is damaged: {error}. Rewrite it."
        raise ValueError(msg) from error


CODECS = (Npz,)
