"""Headers of `.npy` files: written, read, and checked against the bytes of the file."""

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

__all__ = ["NpyHeader", "checked_header", "header_bytes", "owned", "stored_array"]

MAGIC = b"\x93NUMPY"
WIDTHS = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
"""Bytes of the header's length, by the version of the format."""

MAX_HEADER_BYTES = 10_000
"""The limit on a header, as in NumPy, whose parser is safe below it."""

MAX_SHOWN_BYTES = 80
"""Bytes of an invalid header that the error shows."""

PLAIN_KINDS = "biufcmMSUV"
PYTHON_2_SIZE = rb"(?<=\d)L(?=[,)])"


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyHeader:
    """The header of a `.npy` file.

    Attributes:
        dtype: The dtype of the values, in this machine's byte order.
        stored: The dtype in the byte order of the file.
        shape: The shape of the array.
        fortran_order: Whether the values are in Fortran order.
        start: The offset of the values.
        stop: The end of the values and of the file.
    """

    dtype: np.dtype[Any]
    stored: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    start: int
    stop: int

    @property
    def is_plain(self) -> bool:
        """Whether the values have the same bytes as an array in memory."""
        return self.stored == self.dtype and not self.fortran_order

    def __str__(self) -> str:
        """Return the header as the start of a sentence."""
        return f"its .npy header says {self.stored} {self.shape}"


@lru_cache(1024)
def header_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header that `numpy.save` writes for a dtype and a shape."""
    file = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def read_header(cell: memoryview) -> NpyHeader:
    """Return the header of a `.npy` file.

    Raises:
        ValueError: If there is no valid header, or the array cannot be loaded.
    """
    first = bytes(cell[:12])
    if first[:6] != MAGIC:
        raise ValueError(
            f"it starts with {first[:6]!r}; expected a .npy file, which starts with {MAGIC!r}. Check what wrote it."
        )
    version = (first[6], first[7]) if len(first) > 7 else (1, 0)  # noqa: PLR2004 - magic and version
    if version not in WIDTHS:
        known = ", ".join(f"{major}.{minor}" for major, minor in WIDTHS)
        msg = f"it is .npy version {version[0]}.{version[1]}; expected one of {known}. Rewrite it with numpy.save."
        raise ValueError(msg)
    start = 8 + WIDTHS[version]
    end = start + int.from_bytes(first[8:start], "little")
    if end - start > MAX_HEADER_BYTES:
        msg = f"its .npy header has {end - start} bytes; the limit is {MAX_HEADER_BYTES}. Check what wrote it."
        raise ValueError(msg)
    if len(cell) < end or len(first) < start:
        msg = f"it is truncated: it has {len(cell)} bytes, and its .npy header alone has {max(end, start)}. Rewrite it."
        raise ValueError(msg)
    return _parsed(bytes(cell[:end]))


@lru_cache(1024)
def _parsed(text: bytes) -> NpyHeader:
    """Return a parsed header; NumPy parses it as a literal."""
    # Python 2 wrote long sizes as 10L, about which NumPy warns each time.
    file = io.BytesIO(re.sub(PYTHON_2_SIZE, b" ", text[8:]))
    # Version 3.0 differs from 2.0 in the names of fields only, and arrays with fields are not supported.
    read = np.lib.format.read_array_header_1_0 if text[6] == 1 else np.lib.format.read_array_header_2_0
    try:
        shape, fortran_order, stored = read(file, max_header_size=MAX_HEADER_BYTES)
    except Exception as error:
        shown = bytes(text[8 + WIDTHS[text[6], 0] :][:MAX_SHOWN_BYTES])
        msg = f"its .npy header {shown!r} is not valid; expected a dtype, an order and a shape. Check what wrote it."
        raise ValueError(msg) from error
    if stored.hasobject:
        msg = f"it holds Python objects ({stored}), which are never loaded: that could run code. Rewrite it with a plain dtype."
        raise ValueError(msg)
    if stored.names is not None or stored.subdtype is not None or stored.kind not in PLAIN_KINDS:
        msg = f"it holds {stored}, which has several parts; expected a plain dtype. Use a column for each part."
        raise ValueError(msg)
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"its .npy header has the shape {shape}; expected non-negative sizes. Check what wrote it.")
    start, nbytes = len(text), math.prod(shape) * stored.itemsize
    dtype = stored.newbyteorder("=")
    return NpyHeader(
        dtype=dtype, stored=stored, shape=tuple(shape), fortran_order=fortran_order, start=start, stop=start + nbytes
    )


def checked_header(field: Field, row: int, cell: memoryview, max_cell_bytes: int) -> NpyHeader:
    """Return the header of a complete `.npy` file that fits the field.

    Raises:
        CellProblem: If it is not valid, does not fit the field, or exceeds the limit.
    """
    try:
        header = read_header(cell)
    except ValueError as error:
        raise CellProblem(row, str(error)) from error
    # Values of empty text take no bytes, but their number is limited too.
    size = max(header.stop - header.start, math.prod(header.shape))
    if size > max_cell_bytes:
        problem = (
            f"{header}, which takes {size} bytes; the limit for a cell is {max_cell_bytes}. Check what wrote it, or raise it: "
            f".using(max_cell_bytes={size})."
        )
        raise CellProblem(row, problem)
    if header.stop != len(cell):
        problem = f"{header}, so it should have {header.stop} bytes, but it has {len(cell)}. "
        advice = "It is truncated: rewrite it." if header.stop > len(cell) else "Check what wrote it."
        raise CellProblem(row, problem + advice)
    if header.shape != field.shape or header.dtype != field.dtype:
        check_shape(field, row, _array_in(header, row, cell))
    return header


def stored_array(field: Field, row: int, cell: memoryview, max_cell_bytes: int) -> npt.NDArray[Any]:
    """Return a view of the array in a `.npy` file, in its stored byte order.

    Raises:
        CellProblem: If it is not valid, does not fit the field, or exceeds the limit.
    """
    header = checked_header(field, row, cell, max_cell_bytes)
    array = _array_in(header, row, cell)
    return array if header.stored == header.dtype else array.view(header.stored)


def _array_in(header: NpyHeader, row: int, cell: memoryview) -> npt.NDArray[Any]:
    """Return a view of the array in a `.npy` file, as if it were in native byte order."""
    order: Literal["C", "F"] = "F" if header.fortran_order else "C"
    try:
        return np.ndarray(header.shape, header.dtype, cell, header.start, order=order)
    except ValueError as error:
        raise CellProblem(row, f"{header}, which NumPy cannot hold: {error} Check what wrote it.") from error


def owned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy in C order and native byte order."""
    return np.array(array, array.dtype.newbyteorder("="), order="C")
