"""Lists of numbers take a short way, which leads to the same place as the long one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.decode import lists
from penstock._engine.decode.arrow import CellError, decode
from penstock._engine.query.values import Column
from penstock._engine.runtime.memory import BufferPool
from penstock.errors import ArgumentError
from penstock.policies import AsObjects, Fill, Mask, Nulls, Offsets, Pad, Ragged, RaiseIfRagged, RaiseOnNull

NUMBERS = [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()]
OTHERS = [pa.bool_(), pa.string(), pa.date32(), pa.list_(pa.int8())]
POLICIES: list[Ragged] = [AsObjects(), Offsets(), Pad(), Pad(length=3, truncate=True), Pad(7, length=9)]


def plain(found: dict[str, npt.NDArray[Any]]) -> Any:
    """Return arrays as Python has them, with their types."""
    return {name: (str(values.dtype), [np.asarray(one).tolist() for one in values]) for name, values in found.items()}


@st.composite
def arrays(draw: st.DrawFn, kind: pa.DataType) -> pa.Array:
    """Return lists of numbers without any null, in the middle of others."""
    cells = draw(st.lists(st.lists(st.integers(0, 100), max_size=8), max_size=12))
    made = pa.array(cells, draw(st.sampled_from([pa.list_, pa.large_list]))(kind))
    start = draw(st.integers(0, len(made)))
    return made.slice(start, draw(st.integers(0, len(made) - start)))


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
@given(data=st.data())
def test_the_short_way_leads_where_the_long_one_does(kind: pa.DataType, data: st.DataObject) -> None:
    """Values, their types, lengths and offsets are those of the walk, whatever the policy, for any part of an array."""
    array = data.draw(arrays(kind))
    column = Column(
        name="x",
        nulls=data.draw(st.sampled_from([Column(name="x").nulls, RaiseOnNull(), Fill(1)])),
        ragged=data.draw(st.sampled_from(POLICIES)),
    )

    short = decode(array, column, BufferPool(1 << 20))
    # What is in two chunks is walked.
    long = decode(pa.chunked_array([array, array.slice(0, 0)]), column)

    assert plain(short) == plain(long)


@pytest.mark.parametrize("ragged", [AsObjects(), Offsets()], ids=str)
def test_what_is_arrows_memory_is_not_written_to(ragged: Ragged) -> None:
    """Lists that stay in memory are handed out again, so nobody may change them, also where Arrow's buffer can be."""
    numbers = np.arange(6, dtype=np.int32)
    array = pa.ListArray.from_arrays([0, 2, 6], pa.array(numbers).take(pa.array(np.arange(6))))

    found = decode(array, Column(name="x", ragged=ragged))["x"]

    assert not (found if isinstance(ragged, Offsets) else found[0]).flags.writeable


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_all_else_is_walked(kind: pa.DataType) -> None:
    """Lists of what is no number, lists that are null and null items have no short way."""
    some = {pa.bool_(): [True], pa.string(): ["a"], pa.date32(): [1]}.get(kind, [[1]])

    assert lists.plain_lists(pa.array([some], pa.list_(kind)), Offsets(), None, None) is None
    assert lists.plain_lists(pa.array([[1], None]), Offsets(), None, None) is None
    assert lists.plain_lists(pa.array([[1, None]]), Offsets(), None, None) is None
    assert lists.plain_lists(pa.array([[1], [2]]), RaiseIfRagged(), None, None) is None
    assert lists.plain_lists(pa.array([1, 2]), Offsets(), None, None) is None


@pytest.mark.parametrize("nulls", [Mask(), Fill("no number")], ids=str)
def test_policies_of_nulls_count_where_no_null_is(nulls: Nulls) -> None:
    """A mask is there without any null, and a value that does not fit is refused before there is one."""
    array, column = pa.array([[1, 2], [3]]), Column(name="x", nulls=nulls, ragged=Pad())

    if isinstance(nulls, Fill):
        with pytest.raises(ArgumentError, match="no number"):
            decode(array, column)
        return
    assert decode(array, column)["x_valid"].tolist() == [[True, True], [True, False]]


def test_a_list_that_is_too_long_is_refused_with_its_row() -> None:
    """The short way leaves it to the walk to tell."""
    with pytest.raises(CellError, match=r"row 1: the list has 3 values.*has room for 2"):
        decode(pa.array([[1], [1, 2, 3]]), Column(name="x", ragged=Pad(length=2)))


@pytest.mark.parametrize("width", [900, 2000])
def test_long_lists_are_filled_up_and_cut_one_by_one(width: int) -> None:
    """They are what short ones are, in whichever way they are copied."""
    lengths = [lists.LONG, 3 * lists.LONG, 1, 4 * lists.LONG]
    cells = [np.arange(length, dtype=np.int16) + length for length in lengths]
    array = pa.array(cells, pa.list_(pa.int16()))

    found = decode(array, Column(name="x", ragged=Pad(-1, length=width, truncate=True)))

    assert found["x_length"].tolist() == lengths
    for row, cell in zip(found["x"], cells, strict=True):
        assert row.tolist() == [*cell[:width].tolist(), *[-1] * (width - len(cell[:width]))]
