"""Windows have the same rows whether columns are copied at once or wait in memory that lasts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.query.query import Stack
from penstock._engine.runtime.memory import BufferPool
from penstock._engine.window import buffer
from penstock._engine.window.buffer import WindowBuilder
from penstock.model import Read, Window

UNIT = 50


def unit(number: int) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a unit."""
    rows = np.arange(number * UNIT, (number + 1) * UNIT)
    return {"id": rows, "x": rows.astype(np.float32) / 4, "pair": np.stack([rows, -rows], axis=1).astype(np.int16), "y": -rows}


@given(
    reads=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20), st.integers(20, UNIT)), min_size=1, max_size=4),
    strided=st.booleans(),
    cached=st.lists(st.sets(st.sampled_from(["id", "x", "pair", "y"])), min_size=4, max_size=4),
    permuted=st.booleans(),
    stacked=st.booleans(),
    cached_bytes=st.sampled_from([0, 64, 1 << 20]),
)
def test_a_window_has_the_rows_of_its_units_in_the_order_of_its_permutation(
    reads: list[tuple[int, int, int]],
    cached: list[set[str]],
    cached_bytes: int,
    *,
    strided: bool,
    permuted: bool,
    stacked: bool,
) -> None:
    """A window has its rows in permuted order, for any columns that wait in their units, and any cache size."""
    rows = [np.arange(start, stop)[::3] if strided else slice(start, stop) for _, start, stop in reads]
    requests = tuple(Read(unit=number, rows=at) for (number, _, _), at in zip(reads, rows, strict=True))
    total = sum(len(np.arange(UNIT)[at]) for at in rows)
    take = np.random.default_rng(total).permutation(total) if permuted else None
    stacks = [Stack(name="both", columns=("id", "y"))] if stacked else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffer, "CACHED_COLUMN", cached_bytes)
        patch.setattr(buffer, "STEP_BYTES", 1 << 9)
        builder = WindowBuilder(Window(reads=requests, take=take), stacks, BufferPool(1 << 20))
        for at, (number, _, _) in enumerate(reads):
            builder.put(at, unit(number), frozenset(cached[at]))
        builder.prepare_steps()
        builder.order()
        found = builder.complete()

    whole = {name: np.concatenate([unit(read[0])[name][at] for read, at in zip(reads, rows, strict=True)]) for name in unit(0)}
    if stacked:
        whole["both"] = np.stack([whole.pop("id"), whole.pop("y")], axis=1)
    assert found.keys() == whole.keys()
    for name, values in whole.items():
        assert found[name].dtype == values.dtype
        assert found[name].tolist() == (values if take is None else values[take]).tolist()


def test_lasting_columns_are_copied_and_not_written_to() -> None:
    """The columns of a permuted window are writable, and share no memory with cached columns of units."""
    units = [unit(0), unit(1)]
    for columns in units:
        for values in columns.values():
            values.flags.writeable = False
    window = Window(
        reads=(Read(unit=0, rows=slice(0, UNIT)), Read(unit=1, rows=slice(0, UNIT))), take=np.arange(2 * UNIT)[::-1]
    )
    builder = WindowBuilder(window, [], BufferPool(1 << 20), writable=True)
    for at, columns in enumerate(units):
        builder.put(at, columns, frozenset(columns))
    builder.prepare_steps()
    builder.order()

    for name, values in builder.complete().items():
        assert values.flags.writeable
        assert not any(np.shares_memory(values, columns[name]) for columns in units)
