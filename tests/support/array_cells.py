"""Random array columns as byte codecs store them: nulls, several chunks, sliced arrays and selected rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import strategies as st

from penstock._blobs import Blobs
from penstock.schema import CellCodec, Field

NUMBERS = ("?", "i1", "u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16", "M8[D]", "M8[ns]", "m8[us]", "V3", "U3", "S2")
"""Dtypes whose values have a fixed size."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """Cells of a field as a list, where None is null, and the same cells as Arrow blobs."""

    field: Field
    expected: list[Any]
    cells: Blobs


def array(random: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
    """Return an array of random bits that are valid for the dtype."""
    if dtype.kind == "U":
        return random.choice(["", "a", "ß", "語語", "😀🙂x"], shape).astype(dtype.str if dtype.itemsize else "U4")
    if dtype.itemsize == 0:
        dtype = np.dtype("S3")
    bits = random.integers(0, 2 if dtype.kind == "b" else 256, (*shape, dtype.itemsize), np.uint8)
    return np.ascontiguousarray(bits).view(dtype).reshape(shape)


def blobs(codec: CellCodec, field: Field, cells: Sequence[Any], sizes: Sequence[int] = (), *, large: bool = False) -> Blobs:
    """Return encoded cells in chunks of the given sizes plus the rest; each chunk is a slice of a longer array."""
    edges = np.minimum(np.cumsum([0, *sizes]), len(cells)).tolist()
    parts = []
    for start, stop in zip(edges, [*edges[1:], len(cells)], strict=True):
        around = [None, *cells[start:stop], *cells[:1]]
        encoded = codec.encode_column(field, around)
        if large:
            encoded = encoded.cast(pa.large_binary())
        parts.append(Blobs.of(encoded.slice(1, stop - start)))
    return Blobs.joined(parts)


@st.composite
def columns(draw: st.DrawFn, codec: CellCodec, dtypes: Sequence[str] = NUMBERS, *, most_differing: int = 0) -> Column:
    """Draw cells of one field, some of them null, in several chunks and possibly in shuffled order."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = draw(st.lists(st.integers(0, 4) if most_differing != 1 else st.integers(1, 4), max_size=3))
    differing = (
        draw(st.sets(st.sampled_from(range(len(shape))), max_size=most_differing)) if shape and most_differing else set()
    )
    field = Field("x", dtype, [None if at in differing else size for at, size in enumerate(shape)], codec, nullable=True)
    cells: list[Any] = []
    for _ in range(draw(st.integers(0, 6))):
        sizes = [int(random.integers(0, 4)) if at in differing else size for at, size in enumerate(shape)]
        cells.append(None if draw(st.integers(0, 4)) == 0 else array(random, dtype, sizes))
    chunks, large = draw(st.lists(st.integers(0, 3), max_size=3)), draw(st.booleans())
    stored = blobs(codec, field, cells, chunks, large=large)
    picked = np.arange(len(cells))
    if len(cells) > 0 and draw(st.booleans()):
        picked = random.integers(0, len(cells), draw(st.sampled_from([0, 1, 5, 150, 700])))
    return Column(field=field, expected=[cells[row] for row in picked.tolist()], cells=stored.take(picked))


def outs(field: Field, rows: int) -> dict[str, npt.NDArray[Any]]:
    """Return output arrays for decoding a batch: an owned array, an unaligned view of a larger one, and a strided one."""
    shape = (rows, *(size or 0 for size in field.shape))
    size = int(np.prod(shape)) * field.dtype.itemsize
    lent = np.zeros(size + 3, np.uint8)[3:].view(field.dtype).reshape(shape) if size else np.zeros(shape, field.dtype)
    return {
        "own": np.zeros(shape, field.dtype),
        "lent": lent,
        "gaps": np.zeros((rows * 2, *shape[1:]), field.dtype)[::2],
    }


def bits(cells: Sequence[npt.NDArray[Any] | None]) -> list[tuple[str, tuple[int, ...], bytes] | None]:
    """Return dtype, shape and bytes of cells, for exact comparison."""
    return [None if cell is None else (cell.dtype.str, cell.shape, cell.tobytes()) for cell in cells]
