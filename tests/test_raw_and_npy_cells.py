"""Cells of the codecs Raw and Npy: every way of reading returns the written values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from columns import same
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.codecs import Npy, Raw

ROWS = 60
DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float64", "complex64", "M8[us]", "m8[s]", "S3", "U2"]
SHAPES = [(), (1,), (3, 5), (700,), (1500,), (2, 40, 30)]
"""From one value to some kilobytes: cells of up to 4 KiB are decoded with their window, larger ones with their batch."""


def cell(dtype: np.dtype[Any], shape: tuple[int, ...], number: int) -> Any:
    """Return an array whose values depend on the row number."""
    values = np.arange(int(np.prod(shape))).reshape(shape) + 1000 * number
    return (values % 7).astype(dtype) if dtype.kind in "biSU" else values.astype(dtype)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    dtype=st.sampled_from(DTYPES).map(np.dtype),
    shape=st.sampled_from(SHAPES),
    codec=st.sampled_from([Raw(), Npy()]),
    nullable=st.booleans(),
    delta=st.booleans(),
    size=st.integers(1, 25),
)
def test_written_cells_are_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    codec: Any,
    size: int,
    *,
    nullable: bool,
    delta: bool,
) -> None:
    """Cells read in order, shuffled, mapped, by number or with filled nulls equal the written ones. Batches are writable."""
    place = tmp_path_factory.mktemp("cells") / "t"
    nullable = nullable and (isinstance(codec, Raw) or dtype.kind not in "SU")  # nulls of Npy text are not tested here
    schema = ps.Schema("Cells", [ps.Field("id", np.int64), ps.Field("x", dtype, shape, codec, nullable=nullable)])
    cells = [None if nullable and number % 7 == 3 else cell(dtype, shape, number) for number in range(ROWS)]
    rows = [{"id": number, "x": one} for number, one in enumerate(cells)]
    ps.write(str(place), schema, rows, format="delta" if delta else "parquet", row_group_rows=16)
    filler: Any = b"n" if dtype.kind == "S" else "n" if dtype.kind == "U" else np.zeros((), dtype)[()]
    cells = [np.full(shape, filler, dtype) if one is None else one for one in cells]
    ds = ps.open(str(place))
    ds = ds.nulls(ps.Fill(filler.item() if isinstance(filler, np.generic) else filler), "x") if nullable else ds

    datasets = [ds.batch(size, last="uneven"), ds.shuffle(seed=3).batch(size, last="uneven")]
    for each in [*datasets, datasets[1].map(lambda batch: batch)]:
        seen = []
        for batch in each:
            seen += batch["id"].tolist()
            for number, found in zip(batch["id"].tolist(), batch["x"], strict=True):
                assert same(np.asarray(found, dtype), np.asarray(cells[number], dtype)), (number, found)
            batch["x"][:] = batch["x"][::-1].copy()  # no other batch shares this memory
        assert sorted(seen) == list(range(ROWS))
    for number, found in zip([5, 50, 17], ds.take([5, 50, 17])["x"], strict=True):
        assert same(np.asarray(found, dtype), np.asarray(cells[number], dtype))
