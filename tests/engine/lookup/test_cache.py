"""The cache of random access: never larger than its limit, and the least recently used value is dropped first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.lookup.cache import LruCache


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12), st.booleans()), max_size=40))
def test_the_least_recently_used_value_is_dropped_first(calls: list[tuple[int, int, bool]]) -> None:
    """Sizes never exceed the limit. The least recently used value is dropped first. A value over the limit is not cached."""
    cache: LruCache[int, int] = LruCache(max_size=10)
    expected: dict[int, int] = {}
    for key, size, put in calls:
        if put and size <= 10:
            cache.put(key, size, size)
            expected.pop(key, None)
            expected[key] = size
            while sum(expected.values()) > 10:
                expected.pop(next(iter(expected)))
        elif put:
            cache.put(key, size, size)
        else:
            assert cache.get(key) == expected.get(key)
            if key in expected:
                expected[key] = expected.pop(key)

        assert len(cache) == len(expected)

    cache.clear()
    assert [cache.get(key) for key in range(6)] == [None] * 6
