"""The cache on disk: what it keeps, how much, and what readers make of it."""

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
    """Return a function that gives these values, one after the other."""
    return iter(values).__next__


def objects(*cells: Any) -> Any:
    """Return cells as an array of objects."""
    values = np.empty(len(cells), dtype=object)
    values[:] = cells
    return values


def test_values_of_each_kind_are_kept(tmp_path: Path) -> None:
    """Each value comes back with its type, without a pickle."""
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
def test_other_objects_are_not_kept(tmp_path: Path, odd: Any) -> None:
    """An object that is no plain value is computed each time, also inside of a list."""
    cache = LocalDiskCache(str(tmp_path), 10**8, 10)

    assert cache.get("a", lambda: [odd]) == [odd]
    assert cache.get("a", lambda: 7) == 7


@pytest.mark.parametrize(
    "value",
    [42, "text", b"bytes", [1, (2, None)], {"a": np.arange(5), "b": [np.float32(1)]}, np.zeros((100, 1000)), 1.5],
    ids=["int", "str", "bytes", "list", "dict", "array", "float"],
)
def test_plain_values_are_kept(tmp_path: Path, value: Any) -> None:
    """What was computed once is not computed again, nor in another cache at the same place."""
    cache = LocalDiskCache(str(tmp_path / "cache"), 10**8, 10)

    first = cache.get("key", lambda: value)
    second = LocalDiskCache(str(tmp_path / "cache"), 10**8, 10).get("key", counted([]))

    np.testing.assert_equal(second, value)
    np.testing.assert_equal(first, value)
    assert type(second) is type(value)


def test_tables_are_kept(tmp_path: Path) -> None:
    """As Arrow has them."""
    table = pa.table({"a": [1, None], "b": ["x", "y"]})
    cache = LocalDiskCache(str(tmp_path), 10**8, 10)

    cache.get(1, lambda: table)

    assert cache.get(1, counted([])).equals(table)


def test_nothing_is_kept_of_nothing(tmp_path: Path) -> None:
    """None is never found, and what cannot be stored is computed each time."""
    cache = LocalDiskCache(str(tmp_path), 10**8, 10)

    assert (cache.get("a", lambda: None), cache.get("a", lambda: 5)) == (None, 5)
    odd = object()
    assert cache.get("b", lambda: odd) is odd
    assert cache.get("b", lambda: 7) == 7


def test_what_was_stored_first_goes_first(tmp_path: Path) -> None:
    """The limit holds."""
    cache = LocalDiskCache(str(tmp_path), 60_000, 100, shards=1)

    for number in range(20):
        cache.get(number, lambda number=number: np.full(1000, number))  # type: ignore[misc] # bound at once

    assert cache.size() <= 60_000
    assert (cache.get(19, counted([])) == 19).all()
    assert cache.get(0, lambda: "gone") == "gone"


def test_without_eviction_what_was_stored_first_stays(tmp_path: Path) -> None:
    """When the limit is reached nothing more is stored."""
    cache = LocalDiskCache(str(tmp_path), 20_000, 10**9, eviction_policy="none")

    for number in range(20):
        cache.get(number, lambda number=number: np.full(1000, number))  # type: ignore[misc] # bound at once

    assert (cache.get(0, counted([])) == 0).all()
    assert cache.get(19, lambda: "not kept") == "not kept"


def test_a_limit_must_be_of_use() -> None:
    """A few rows must fit each part."""
    with pytest.raises(ValueError, match="Condition 'size_limit_bytes / shards < 5 \\* expected_row_size_bytes' needs to hold"):
        LocalDiskCache("nowhere", 1000, 100)


def test_cleaning_up_deletes_the_directory_where_asked(tmp_path: Path) -> None:
    """It may be done twice."""
    for cleanup in (True, False):
        place = tmp_path / str(cleanup)
        cache = LocalDiskCache(str(place), 10**8, 10, cleanup=cleanup)
        cache.get("a", lambda: 1)
        cache.cleanup()
        cache.cleanup()

        assert place.exists() is not cleanup


def test_the_directory_goes_though_others_write_and_delete_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files that appear or vanish meanwhile are no reason to leave it."""
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
    """The directory is gone at once, and rows come on."""
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


def test_what_cannot_be_deleted_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Petastorm's words; the directory lies where it was."""

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
    """An `OSError` of its `cleanup` is reported, on request and at the end of the context; other errors go through."""

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


def test_a_damaged_file_is_computed_anew(tmp_path: Path) -> None:
    """What cannot be read is not there."""
    cache = LocalDiskCache(str(tmp_path), 10**8, 10)
    cache.get("a", lambda: 1)
    for file in tmp_path.iterdir():
        file.write_bytes(b"x")

    assert cache.get("a", lambda: 2) == 2


def test_a_cache_that_keeps_nothing() -> None:
    """It is a cache all the same."""
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
def test_a_reader_reads_from_its_cache(tmp_path: Path, pool: str) -> None:
    """What was kept is read when the files are gone, as long as they are known."""
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


def test_a_file_that_changed_is_read_anew(tmp_path: Path) -> None:
    """What is kept depends on when a file was written."""
    place = tmp_path / "t"
    for number in (1, 22):
        url = tables.plain(place, {"id": [number, number + 1]})
        with make_batch_reader(url, **options(tmp_path, cleanup=False)) as reader:
            assert tables.ids(reader) == [number, number + 1]


def test_filtered_rows_are_kept_apart(tmp_path: Path) -> None:
    """Another filter finds other rows."""
    url = tables.plain(tmp_path / "t", {"id": list(range(10))})
    for least in (3, 7, 3):
        with make_batch_reader(url, filters=[("id", ">=", least)], **options(tmp_path, cleanup=False)) as reader:
            assert tables.ids(reader) == list(range(least, 10))


def test_a_cache_goes_together_with_neither_predicates_nor_parts(tmp_path: Path) -> None:
    """As in Petastorm, the first row tells."""
    url = tables.small(tmp_path / "t")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"predicate": in_lambda(["id"], bool)}, "Local cache is not supported together with predicates"),
        ({"shuffle_row_drop_partitions": 2}, "Local cache is not supported together with shuffle_row_drop_partitions"),
    ]
    for more, text in wrong:
        with make_reader(url, **options(tmp_path), **more) as reader, pytest.raises(RuntimeError, match=text):
            next(reader)


def test_a_cache_on_disk_says_where_and_how_large_it_is(tmp_path: Path) -> None:
    """What is missing is named."""
    with pytest.raises(ValueError, match="needs cache_location, cache_size_limit and cache_row_size_estimate"):
        make_reader(tables.small(tmp_path / "t"), cache_type="local-disk")
