"""What stands before the values of a `.npy` file: made, read, and checked against the bytes that are there."""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.schema import CellProblem, Field, check_shape

__all__ = ["Header", "checked_header", "header_bytes", "owned", "stored_array"]

MAGIC = b"\x93NUMPY"
WIDTHS = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
"""The bytes that hold the header's length, by the version of the format."""

MOST_HEADER_BYTES = 10_000
"""What a header may take; NumPy's own limit, below which its parser is safe."""

MOST_TOLD_BYTES = 80
"""What is shown of a header that cannot be read."""

PLAIN_KINDS = "biufcmMSUV"
PYTHON_2_SIZE = re.compile(rb"(?<=\d)L(?=[,)])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header of a `.npy` file.

    Attributes:
        dtype: The dtype of the values, in this machine's byte order.
        stored: The same in the byte order of the file.
        shape: The shape of the array.
        fortran_order: Whether the first dimension lies densest.
        start: Where the values begin.
        stop: Where they end, and the file with them.
    """

    dtype: np.dtype[Any]
    stored: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    start: int
    stop: int

    @property
    def is_plain(self) -> bool:
        """Whether the bytes of the values are those of an array in memory."""
        return self.stored == self.dtype and not self.fortran_order

    def __str__(self) -> str:
        """Return what it says, as the beginning of a sentence."""
        return f"its .npy header says {self.stored} {self.shape}"


@lru_cache(1024)
def header_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return what `numpy.save` writes before the values of such an array."""
    file = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def read_header(cell: memoryview) -> Header:
    """Return the header of a `.npy` file.

    Raises:
        ValueError: If there is none, or one of an array that is not loaded.
    """
    first = bytes(cell[:12])
    if first[:6] != MAGIC:
        raise ValueError(f"it begins with {first[:6]!r}. A .npy file begins with {MAGIC!r}. Check what wrote it.")
    version = (first[6], first[7]) if len(first) > 7 else (1, 0)  # noqa: PLR2004 - magic and version
    if version not in WIDTHS:
        known = ", ".join(f"{major}.{minor}" for major, minor in WIDTHS)
        msg = f"it is .npy of version {version[0]}.{version[1]}. Known are {known}. Write it anew with numpy.save."
        raise ValueError(msg)
    start = 8 + WIDTHS[version]
    end = start + int.from_bytes(first[8:start], "little")
    if end - start > MOST_HEADER_BYTES:
        msg = f"its .npy header takes {end - start} bytes. {MOST_HEADER_BYTES} are allowed. Check what wrote it."
        raise ValueError(msg)
    if len(cell) < end or len(first) < start:
        msg = f"it ends after {len(cell)} bytes, inside the .npy header. {max(end, start)} and the values were expected. "
        raise ValueError(msg + "It was cut short: write it anew.")
    return _parsed(bytes(cell[:end]))


@lru_cache(1024)
def _parsed(text: bytes) -> Header:
    """Return what a whole header says; NumPy reads it, as a literal and nothing else."""
    # Python 2 wrote long sizes as 10L, of which NumPy warns each time.
    file = io.BytesIO(PYTHON_2_SIZE.sub(b" ", text[8:]))
    # What version 3.0 adds to 2.0 are other names of fields, and such arrays are refused.
    read = np.lib.format.read_array_header_1_0 if text[6] == 1 else np.lib.format.read_array_header_2_0
    try:
        shape, fortran_order, stored = read(file, max_header_size=MOST_HEADER_BYTES)
    except Exception as error:
        told = bytes(text[8 + WIDTHS[text[6], 0] :][:MOST_TOLD_BYTES])
        msg = f"its .npy header is {told!r}, which NumPy cannot read. A dtype, an order and a shape were expected. "
        raise ValueError(msg + "Check what wrote it.") from error
    if stored.hasobject:
        msg = f"it holds Python objects ({stored}), which are never loaded: that could run code. Write it with a plain dtype."
        raise ValueError(msg)
    if stored.names is not None or stored.subdtype is not None or stored.kind not in PLAIN_KINDS:
        msg = f"it holds {stored}, which is made of others. A plain dtype was expected. Give each part a column of its own."
        raise ValueError(msg)
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"its .npy header says the shape {shape}. Sizes from 0 on were expected. Check what wrote it.")
    start, nbytes = len(text), math.prod(shape) * stored.itemsize
    dtype = stored.newbyteorder("=")
    return Header(dtype=dtype, stored=stored, shape=tuple(shape), fortran_order=fortran_order, start=start, stop=start + nbytes)


def checked_header(field: Field, row: int, cell: memoryview, max_cell_bytes: int) -> Header:
    """Return the header of a `.npy` file whose array is all there and fits the field.

    Raises:
        CellProblem: If there is none, or one that does not fit the field or is larger than allowed.
    """
    try:
        header = read_header(cell)
    except ValueError as error:
        raise CellProblem(row, str(error)) from error
    # Empty text takes no bytes, and still there may not be any number of values.
    taken = max(header.stop - header.start, math.prod(header.shape))
    if taken > max_cell_bytes:
        problem = (
            f"{header}, which takes {taken} bytes. {max_cell_bytes} are allowed for a cell. Check what wrote it, or "
            "allow more: "
            f".using(max_cell_bytes={taken})."
        )
        raise CellProblem(row, problem)
    if header.stop != len(cell):
        problem = f"{header}, which makes {header.stop} bytes in all, and there are {len(cell)}. "
        advice = "It was cut short: write it anew." if header.stop > len(cell) else "Check what wrote it."
        raise CellProblem(row, problem + advice)
    if header.shape != field.shape or header.dtype != field.dtype:
        check_shape(field, row, _array_in(header, row, cell))
    return header


def stored_array(field: Field, row: int, cell: memoryview, max_cell_bytes: int) -> npt.NDArray[Any]:
    """Return the array in a `.npy` file where it lies, in the byte order it has there.

    Raises:
        CellProblem: If there is none, or one that does not fit the field or is larger than allowed.
    """
    header = checked_header(field, row, cell, max_cell_bytes)
    found = _array_in(header, row, cell)
    return found if header.stored == header.dtype else found.view(header.stored)


def _array_in(header: Header, row: int, cell: memoryview) -> npt.NDArray[Any]:
    """Return the array in a `.npy` file where it lies, as if in this machine's byte order."""
    order: Literal["C", "F"] = "F" if header.fortran_order else "C"
    try:
        return np.ndarray(header.shape, header.dtype, cell, header.start, order=order)
    except ValueError as error:
        raise CellProblem(row, f"{header}, which NumPy cannot hold: {error} Check what wrote it.") from error


def owned(found: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy in memory of its own, in C order and this machine's byte order."""
    return np.array(found, found.dtype.newbyteorder("="), order="C")
