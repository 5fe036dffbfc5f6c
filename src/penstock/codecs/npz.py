"""Arrays of any shape as compressed `.npz` files: the bytes of `numpy.savez_compressed`."""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._blobs import MAX_CELL_BYTES, Blobs
from penstock.codecs._npy_header import owned, stored_array
from penstock.codecs.npy import check_plain
from penstock.schema import CellCodec, CellProblem, Field

__all__ = ["CODECS", "Npz"]

MEMBER = "arr.npy"
MOST_TOLD = 5
ENCRYPTED = 1
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
        """Refuse Python objects, and dtypes that NumPy does not have itself.

        Raises:
            ArgumentError: If it is one of them.
        """
        check_plain(field, "Npz")

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return what `numpy.savez_compressed` writes."""
        file = io.BytesIO()
        np.savez_compressed(file, arr=np.asarray(cell, field.dtype, order="C"))
        return file.getvalue()

    def decode(self, field: Field, cell: memoryview) -> npt.NDArray[Any]:
        """Return the array in a `.npz` file.

        Raises:
            CellProblem: If there is none, or one that does not fit the field.
        """
        return owned(_array_in(field, 0, cell, MAX_CELL_BYTES))

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode cells into an array, a row each."""
        for row, cell in cells.present():
            out[row] = _array_in(field, row, cell, cells.max_cell_bytes)

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Return decoded cells one by one, None for nulls."""
        found: list[Any] = [None] * len(cells)
        for row, cell in cells.present():
            found[row] = owned(_array_in(field, row, cell, cells.max_cell_bytes))
        return found


def _array_in(field: Field, row: int, cell: memoryview, max_cell_bytes: int) -> npt.NDArray[Any]:
    """Return the array in a `.npz` file, in the byte order it has there."""
    try:
        inflated = _member(bytes(cell), max_cell_bytes)
    except ValueError as error:
        raise CellProblem(row, str(error)) from error
    return stored_array(field, row, memoryview(inflated), max_cell_bytes)


def _member(cell: bytes, max_cell_bytes: int) -> bytes:
    """Return the bytes of the one `.npy` file in a zip file, never more than allowed."""
    try:
        with zipfile.ZipFile(io.BytesIO(cell)) as archive:
            members = archive.infolist()
    except Exception as error:
        msg = f"it is no zip file: {error}. The bytes of numpy.savez_compressed were expected. Check what wrote it."
        raise ValueError(msg) from error
    info = _chosen(members)
    told = f"its member {info.filename!r}"
    if info.flag_bits & ENCRYPTED:
        raise ValueError(f"{told} is encrypted. A plain one was expected. Write it anew without a password.")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        msg = f"{told} is compressed by method {info.compress_type} of zip. Deflate (8) or none (0) was expected. "
        raise ValueError(msg + "Write it anew with numpy.savez_compressed.")
    if info.file_size > max_cell_bytes:
        msg = f"{told} claims {info.file_size} bytes. {max_cell_bytes} are allowed for a cell. Check what wrote it, or allow "
        raise ValueError(msg + f"more: .using(max_cell_bytes={info.file_size}).")
    found = _inflated(cell, info)
    if len(found) != info.file_size or zlib.crc32(found) != info.CRC:
        msg = f"{told} is damaged: {info.file_size} bytes with checksum {info.CRC:#010x} were expected, and others are there. "
        raise ValueError(msg + "Write it anew.")
    return found


def _chosen(members: list[zipfile.ZipInfo]) -> zipfile.ZipInfo:
    """Return the member that is the array: the one that Petastorm names so, or the only one."""
    named = [info for info in members if info.filename == MEMBER]
    for choice in (named, members):
        if len(choice) == 1 and choice[0].filename.endswith(".npy"):
            return choice[0]
    names = ", ".join(info.filename for info in members[:MOST_TOLD]) or "nothing"
    more = f" and {len(members) - MOST_TOLD} more" if len(members) > MOST_TOLD else ""
    msg = f"it is a zip file that holds {names}{more}. One member, {MEMBER}, was expected. "
    raise ValueError(msg + "Write it anew with numpy.savez_compressed(file, arr=array).")


def _inflated(cell: bytes, info: zipfile.ZipInfo) -> bytes:
    """Return the bytes of a member, at most one more than it claims to have; `zipfile` would inflate them all."""
    header = cell[info.header_offset : info.header_offset + LOCAL_HEADER_BYTES]
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    start = info.header_offset + LOCAL_HEADER_BYTES + names
    packed = memoryview(cell)[start : start + info.compress_size]
    if info.compress_type == zipfile.ZIP_STORED:
        return bytes(packed[: info.file_size + 1])
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, info.file_size + 1)
    except zlib.error as error:
        msg = f"its member {info.filename!r} is damaged: {error}. Deflated bytes were expected. Write it anew."
        raise ValueError(msg) from error


CODECS = (Npz,)
