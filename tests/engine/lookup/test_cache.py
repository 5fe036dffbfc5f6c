"""What is kept: never more than there is room for, and what was asked for last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.lookup.cache import LruCache


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12), st.booleans()), max_size=40))
def test_what_was_asked_for_last_is_kept(calls: list[tuple[int, int, bool]]) -> None:
    """Sizes never exceed the room; what goes is what was not asked for longest, or too large alone."""
    keep: LruCache[int, int] = LruCache(most=10)
    expected: dict[int, int] = {}
    for key, size, put in calls:
        if put and size <= 10:
            keep.put(key, size, size)
            expected.pop(key, None)
            expected[key] = size
            while sum(expected.values()) > 10:
                expected.pop(next(iter(expected)))
        elif put:
            keep.put(key, size, size)
        else:
            assert keep.get(key) == expected.get(key)
            if key in expected:
                expected[key] = expected.pop(key)

        assert len(keep) == len(expected)

    keep.clear()
    assert [keep.get(key) for key in range(6)] == [None] * 6
