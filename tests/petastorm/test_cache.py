"""The cache on disk: which values it stores, its size limit, and how readers use it."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import petastorm_tables as tables
import pyarrow as pa
import pytest

from penstock.petastorm import make_batch_reader, make_reader
from penstock.petastorm.cache import CacheBase, NullCache
from penstock.petastorm.local_disk_cache import LocalDiskCache
from penstock.petastorm.predicates import in_lambda


def counted(values: list[Any]) -> Any:
    """Return a function that returns these values one after the other."""
    return iter(values).__next__


def objects(*cells: Any) -> Any:
    """Return cells as an array of objects."""
    values = np.empty(len(cells), dtype=object)
    values[:] = cells
    return values


def test_values_of_each_type_are_cached(tmp_path: Path) -> None:
    """A cached value comes back with its type, and the cache stores no pickles."""
    value = [
        None,
        True,
        1 << 80,
        -0.0,
        b"\x00",
        1j,
        Decimal("1.50"),
        UUID(int=5),
        dt.date(2020, 2, 29),
        dt.time(1, 2, 3, 4),
        dt.datetime(2020, 1, 1, 5, tzinfo=dt.UTC),
        dt.timedelta(-1, 2, 3),
        np.float16(1.5),
        np.datetime64("2020-01-01T00:00:00.000000001"),
        np.array([(1, (2.0, 3.0))], [("a", "<i4"), ("b", "<f8", (2,))]),
        objects("a", objects(b"b", None)),
        (1, [2, {"a": (b"b",), 3: "c"}]),
    ]
    cache = LocalDiskCache(str(tmp_path), 10**8, 10)

    cache.get("key", lambda: value)

    assert repr(cache.get("key", counted([]))) == repr(value)
    assert all(b"\x80\x05" not in file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    "odd",
    [object(), {1}, Path("x"), dt.datetime(2020, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {})())],
    ids=["object", "set", "path", "time with a zone"],
)
def test_other_objects_are_not_cached(tmp_path: Path, odd: Any) -> None:
    """An object that is not a plain value is computed on each call, also inside a list."""
    cache = LocalDiskCache(str(tmp_path), 10**8, 10)

    assert cache.get("a", lambda: [odd]) == [odd]
    assert cache.get("a", lambda: 7) == 7


@pytest.mark.parametrize(
    "value",
    [42, "text", b"bytes", [1, (2, None)], {"a": np.arange(5), "b": [np.float32(1)]}, np.zeros((100, 1000)), 1.5],
    ids=["int", "str", "bytes", "list", "dict", "array", "float"],
)
def test_plain_values_are_cached(tmp_path: Path, value: Any) -> None:
    """A cached value is not computed again, also not by another cache in the same directory."""
    cache = LocalDiskCache(str(tmp_path / "cache"), 10**8, 10)

    first = cache.get("key", lambda: value)
    second = LocalDiskCache(str(tmp_path / "cache"), 10**8, 10).get("key", counted([]))

    np.testing.assert_equal(second, value)
    np.testing.assert_equal(first, value)
    assert type(second) is type(value)


def test_tables_are_cached(tmp_path: Path) -> None:
    """An Arrow table comes back from the cache unchanged."""
    table = pa.table({"a": [1, None], "b": ["x", "y"]})
    cache = LocalDiskCache(str(tmp_path), 10**8, 10)

    cache.get(1, lambda: table)

    assert cache.get(1, counted([])).equals(table)


def test_none_is_not_cached(tmp_path: Path) -> None:
    """None counts as missing, and an object that cannot be stored is computed on each call."""
    cache = LocalDiskCache(str(tmp_path), 10**8, 10)

    assert (cache.get("a", lambda: None), cache.get("a", lambda: 5)) == (None, 5)
    odd = object()
    assert cache.get("b", lambda: odd) is odd
    assert cache.get("b", lambda: 7) == 7


def test_the_oldest_entries_are_evicted_first(tmp_path: Path) -> None:
    """At the size limit, the oldest entries are deleted."""
    cache = LocalDiskCache(str(tmp_path), 60_000, 100, shards=1)

    for number in range(20):
        cache.get(number, lambda number=number: np.full(1000, number))  # type: ignore[misc] # bound at once

    assert cache.size() <= 60_000
    assert (cache.get(19, counted([])) == 19).all()
    assert cache.get(0, lambda: "gone") == "gone"


def test_without_eviction_a_full_cache_stores_nothing(tmp_path: Path) -> None:
    """Without eviction, a full cache keeps its entries and stores no new ones."""
    cache = LocalDiskCache(str(tmp_path), 20_000, 10**9, eviction_policy="none")

    for number in range(20):
        cache.get(number, lambda number=number: np.full(1000, number))  # type: ignore[misc] # bound at once

    assert (cache.get(0, counted([])) == 0).all()
    assert cache.get(19, lambda: "not kept") == "not kept"


def test_a_size_limit_that_is_too_small_raises() -> None:
    """A size limit below five rows per shard raises ValueError."""
    with pytest.raises(ValueError, match="Condition 'size_limit_bytes / shards < 5 \\* expected_row_size_bytes' needs to hold"):
        LocalDiskCache("nowhere", 1000, 100)


def test_cleanup_deletes_the_directory_if_configured(tmp_path: Path) -> None:
    """`cleanup` deletes the directory only with `cleanup=True`. A second call is allowed."""
    for cleanup in (True, False):
        place = tmp_path / str(cleanup)
        cache = LocalDiskCache(str(place), 10**8, 10, cleanup=cleanup)
        cache.get("a", lambda: 1)
        cache.cleanup()
        cache.cleanup()

        assert place.exists() is not cleanup


def test_cleanup_deletes_a_directory_that_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cleanup` deletes the directory although files appear and disappear in it meanwhile."""
    place = tmp_path / "cache"
    cache = LocalDiskCache(str(place), 10**8, 10)
    for number in range(4):
        cache.get(number, lambda: 1)
    unlink, calls = os.unlink, iter(range(1000))

    def disturbed(name: Any, **options: Any) -> None:
        if next(calls) == 0:
            cache.get("late", lambda: 2)
            for other in place.iterdir() if place.exists() else ():
                if other.name != name:
                    unlink(other)
        unlink(name, **options)

    monkeypatch.setattr(os, "unlink", disturbed)
    cache.cleanup()

    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""
    assert cache.get("later", lambda: 3) == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pool", ["thread", "process"])
def test_a_cache_is_cleaned_up_while_its_reader_runs(tmp_path: Path, pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`cleanup_cache` deletes the directory at once, and the reader still returns all rows."""
    url = tables.small(tmp_path / "t", rows=400)
    for number in range(10 if pool == "thread" else 1):
        given = {**options(tmp_path), "cache_location": str(tmp_path / f"cache-{number}")}
        with make_reader(url, reader_pool_type=pool, workers_count=4, **given) as reader:
            first = next(reader)
            reader.cleanup_cache()
            gone = not (tmp_path / f"cache-{number}").exists()
            rest = list(reader)

        assert gone
        assert sorted(tables.ids([first, *rest])) == list(range(400))
    assert [entry.name for entry in tmp_path.iterdir()] == ["t"]
    assert "Error" not in capsys.readouterr().out


def test_a_directory_that_cannot_be_deleted_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cleanup that cannot delete prints Petastorm's message and leaves the directory in place."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("it is in use")

    cache = LocalDiskCache(str(tmp_path / "cache"), 10**8, 10)
    cache.get("a", lambda: 1)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refuse)
        cache.cleanup()

    assert capsys.readouterr().out == "Error during rmtree: it is in use\n"
    assert cache.get("a", counted([])) == 1
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        cache.cleanup()
    assert list(tmp_path.iterdir()) == []


def test_errors_of_a_cache_do_not_end_a_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An `OSError` of a cache's `cleanup` is printed, on request and at the end of the context. Other errors are raised."""

    class Broken(NullCache):
        raised: Exception = OSError("no such disk")

        def cleanup(self) -> None:
            raise self.raised

    url = tables.small(tmp_path / "t")
    with make_reader(url, reader_pool_type="dummy") as reader:
        reader.cache = Broken()
        reader.cleanup_cache()
        first = capsys.readouterr().out
    second = capsys.readouterr().out
    reader.cache.raised = KeyError("a fault of the cache")
    with pytest.raises(KeyError):
        reader.cleanup_cache()

    assert first == "Error cleaning cache: no such disk\nCache cleanup complete.\n"
    assert second == "Error cleaning cache: no such disk\n"


def test_a_damaged_file_is_computed_again(tmp_path: Path) -> None:
    """A cache file that cannot be read counts as missing."""
    cache = LocalDiskCache(str(tmp_path), 10**8, 10)
    cache.get("a", lambda: 1)
    for file in tmp_path.iterdir():
        file.write_bytes(b"x")

    assert cache.get("a", lambda: 2) == 2


def test_a_null_cache_stores_nothing() -> None:
    """`NullCache` is a `CacheBase`, computes each value and has no `cleanup`."""
    assert isinstance(NullCache(), CacheBase)
    assert NullCache().get("a", lambda: 5) == 5
    assert not hasattr(NullCache(), "cleanup")


def options(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """Return the arguments of a reader with a cache."""
    return {
        "cache_type": "local-disk",
        "cache_location": str(tmp_path / "cache"),
        "cache_size_limit": 10**8,
        "cache_row_size_estimate": 100,
        "cache_extra_settings": settings,
    }


@pytest.mark.parametrize("pool", ["dummy", "thread", "process"])
def test_a_reader_stores_row_groups_in_its_cache(tmp_path: Path, pool: str) -> None:
    """A reader stores one cache file per row group. Another reader of the same cache returns the same rows and deletes it."""
    url = tables.small(tmp_path / "t")
    given = {**options(tmp_path, cleanup=False), "reader_pool_type": pool, "workers_count": 1, "shuffle_rows": True}

    with make_reader(url, num_epochs=2, **given) as reader:
        first = list(reader)

    assert sorted(int(row.id) for row in first) == sorted([*range(40), *range(40)])
    assert all((row.vector == row.id).all() and row.name == f"row {row.id}" for row in first)
    assert len(list((tmp_path / "cache").iterdir())) == 4
    with make_batch_reader(url, decode=True, **options(tmp_path)) as batches:
        assert sorted(tables.ids(batches)) == list(range(40))
    assert not (tmp_path / "cache").exists()


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """A file that changed after it was cached is read again."""
    place = tmp_path / "t"
    for number in (1, 22):
        url = tables.plain(place, {"id": [number, number + 1]})
        with make_batch_reader(url, **options(tmp_path, cleanup=False)) as reader:
            assert tables.ids(reader) == [number, number + 1]


def test_cache_entries_depend_on_filters(tmp_path: Path) -> None:
    """Readers with different filters do not share cache entries."""
    url = tables.plain(tmp_path / "t", {"id": list(range(10))})
    for least in (3, 7, 3):
        with make_batch_reader(url, filters=[("id", ">=", least)], **options(tmp_path, cleanup=False)) as reader:
            assert tables.ids(reader) == list(range(least, 10))


def test_a_cache_with_a_predicate_or_with_parts_raises(tmp_path: Path) -> None:
    """A cache together with a predicate or with parts of row groups raises RuntimeError at the first row, as in Petastorm."""
    url = tables.small(tmp_path / "t")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"predicate": in_lambda(["id"], bool)}, "Local cache is not supported together with predicates"),
        ({"shuffle_row_drop_partitions": 2}, "Local cache is not supported together with shuffle_row_drop_partitions"),
    ]
    for more, text in wrong:
        with make_reader(url, **options(tmp_path), **more) as reader, pytest.raises(RuntimeError, match=text):
            next(reader)


def test_a_disk_cache_without_its_arguments_raises(tmp_path: Path) -> None:
    """A disk cache without its location and sizes raises ValueError that names the arguments."""
    with pytest.raises(ValueError, match="needs cache_location, cache_size_limit and cache_row_size_estimate"):
        make_reader(tables.small(tmp_path / "t"), cache_type="local-disk")
