"""Lists of numbers have a fast path, which gives the same arrays as the general decoder."""

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
from penstock._engine.query.query import ColumnDecoding
from penstock._engine.runtime.memory import BufferPool
from penstock.errors import ArgumentError
from penstock.policies import AsObjects, Fill, Mask, Nulls, Offsets, Pad, Ragged, RaiseIfRagged, RaiseOnNull

NUMBERS = [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()]
OTHERS = [pa.bool_(), pa.string(), pa.date32(), pa.list_(pa.int8())]
POLICIES: list[Ragged] = [AsObjects(), Offsets(), Pad(), Pad(length=3, truncate=True), Pad(7, length=9)]


def plain(found: dict[str, npt.NDArray[Any]]) -> Any:
    """Return arrays as Python lists, with their dtypes."""
    return {name: (str(values.dtype), [np.asarray(one).tolist() for one in values]) for name, values in found.items()}


@st.composite
def arrays(draw: st.DrawFn, kind: pa.DataType) -> pa.Array:
    """Draw lists of numbers without any null, as a slice of a longer array."""
    cells = draw(st.lists(st.lists(st.integers(0, 100), max_size=8), max_size=12))
    made = pa.array(cells, draw(st.sampled_from([pa.list_, pa.large_list]))(kind))
    start = draw(st.integers(0, len(made)))
    return made.slice(start, draw(st.integers(0, len(made) - start)))


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
@given(data=st.data())
def test_the_fast_path_equals_the_general_decoder(kind: pa.DataType, data: st.DataObject) -> None:
    """Values, their types, lengths and offsets are equal for every policy, for any part of an array."""
    array = data.draw(arrays(kind))
    column = ColumnDecoding(
        name="x",
        nulls=data.draw(st.sampled_from([ColumnDecoding(name="x").nulls, RaiseOnNull(), Fill(1)])),
        ragged=data.draw(st.sampled_from(POLICIES)),
    )

    fast = decode(array, column, BufferPool(1 << 20))
    # Two chunks take the general path.
    general = decode(pa.chunked_array([array, array.slice(0, 0)]), column)

    assert plain(fast) == plain(general)


@pytest.mark.parametrize("ragged", [AsObjects(), Offsets()], ids=str)
def test_views_of_arrow_memory_are_read_only(ragged: Ragged) -> None:
    """Cached lists are returned again, so they must not change, even if Arrow's buffer is mutable."""
    numbers = np.arange(6, dtype=np.int32)
    array = pa.ListArray.from_arrays([0, 2, 6], pa.array(numbers).take(pa.array(np.arange(6))))

    found = decode(array, ColumnDecoding(name="x", ragged=ragged))["x"]

    assert not (found if isinstance(ragged, Offsets) else found[0]).flags.writeable


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_other_lists_take_the_general_path(kind: pa.DataType) -> None:
    """The fast path returns None for other items, nulls, lists that must raise, and arrays without lists."""
    some = {pa.bool_(): [True], pa.string(): ["a"], pa.date32(): [1]}.get(kind, [[1]])

    assert lists.decode_number_lists(pa.array([some], pa.list_(kind)), Offsets(), None, None) is None
    assert lists.decode_number_lists(pa.array([[1], None]), Offsets(), None, None) is None
    assert lists.decode_number_lists(pa.array([[1, None]]), Offsets(), None, None) is None
    assert lists.decode_number_lists(pa.array([[1], [2]]), RaiseIfRagged(), None, None) is None
    assert lists.decode_number_lists(pa.array([1, 2]), Offsets(), None, None) is None


@pytest.mark.parametrize("nulls", [Mask(), Fill("no number")], ids=str)
def test_null_policies_apply_without_nulls(nulls: Nulls) -> None:
    """`Mask` adds its column, and `Fill` checks its value, before there is a null."""
    array, column = pa.array([[1, 2], [3]]), ColumnDecoding(name="x", nulls=nulls, ragged=Pad())

    if isinstance(nulls, Fill):
        with pytest.raises(ArgumentError, match="no number"):
            decode(array, column)
        return
    assert decode(array, column)["x_valid"].tolist() == [[True, True], [True, False]]


def test_a_list_that_is_too_long_raises_with_its_row() -> None:
    """The fast path leaves the error to the general decoder."""
    with pytest.raises(CellError, match=r"row 1: the list has 3 values.*allows 2"):
        decode(pa.array([[1], [1, 2, 3]]), ColumnDecoding(name="x", ragged=Pad(length=2)))


@pytest.mark.parametrize("width", [900, 2000])
def test_long_lists_are_padded_and_cut_one_by_one(width: int) -> None:
    """The result does not depend on how lists are copied."""
    lengths = [lists.LONG_LIST, 3 * lists.LONG_LIST, 1, 4 * lists.LONG_LIST]
    cells = [np.arange(length, dtype=np.int16) + length for length in lengths]
    array = pa.array(cells, pa.list_(pa.int16()))

    found = decode(array, ColumnDecoding(name="x", ragged=Pad(-1, length=width, truncate=True)))

    assert found["x_length"].tolist() == lengths
    for row, cell in zip(found["x"], cells, strict=True):
        assert row.tolist() == [*cell[:width].tolist(), *[-1] * (width - len(cell[:width]))]
