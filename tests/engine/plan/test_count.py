"""Row counts of a filter are exact, cached on disk, and checked before they are used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.testing import MemoryFormat


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set an empty cache directory for the test, and return the path of its counts."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "counts"


def table() -> MemoryFormat:
    """Return a table of two files whose statistics do not decide the filter."""
    return MemoryFormat.of({"id": range(12), "third": [number % 3 for number in range(12)]}, row_group_rows=3, files=2)


def rows(of: MemoryFormat) -> int:
    """Return how many rows pass the filter in a newly opened table."""
    return of.open().where(ps.col("third") == 1).num_rows


def test_rows_are_counted_once_and_cached(cache: Path) -> None:
    """A second job over the same table reads the footers, but no data to count rows."""
    first, second = table(), table()

    assert rows(first) == rows(second) == 4
    assert len(list(cache.iterdir())) == 1
    assert sum(second.opened.values()) == 2
    assert sum(first.opened.values()) > 2


def test_footers_are_read_once_for_all_queries_of_a_table() -> None:
    """Other shuffles, seeds, limits and filters of one dataset do not read the footers again."""
    of = table()
    ds = of.open()
    for query in (ds, ds.shuffle(seed=3), ds.limit(5), ds.shuffle(ps.RowGroupShuffle())):
        assert query.num_rows in (5, 12)
    for bound in (3, 6, 9):
        assert ds.where(ps.col("id") >= bound).num_rows == 12 - bound

    assert sum(of.opened.values()) == 2


def test_rows_that_statistics_decide_are_not_counted(cache: Path) -> None:
    """A filter that whole row groups pass or fail reads no data and caches no counts."""
    of = table()

    assert of.open().where(ps.col("id") >= 6).num_rows == 6
    assert sum(of.opened.values()) == 2
    assert not cache.exists()


def test_each_filter_and_table_has_its_own_counts(cache: Path) -> None:
    """Cached counts belong to the files, the deletes and the filter."""
    of = table()
    changed = MemoryFormat.of(
        {"id": range(12), "third": [number % 3 for number in range(12)]}, row_group_rows=3, files=2, deletes={0: [1]}
    )

    assert [of.open().where(ps.col("third") == value).num_rows for value in (0, 1, 2)] == [4, 4, 4]
    assert rows(changed) == 3
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_damaged_counts_are_counted_again(cache: Path, content: bytes | None) -> None:
    """Cached counts that are empty, invalid or of another length are counted again and replaced."""
    rows(table())
    counts_file = next(cache.iterdir())
    if content is None:
        np.save(counts_file, np.array([1, 2]))
    else:
        counts_file.write_bytes(content)

    assert rows(table()) == 4
    assert np.load(counts_file).tolist() == [1, 1, 1, 1]


def test_wrong_counts_raise_when_rows_are_read(cache: Path) -> None:
    """If the filter keeps another number of rows than cached, reading raises, and raises the same again."""
    rows(table())
    np.save(next(cache.iterdir()), np.array([1, 1, 2, 1]))
    batches = iter(table().open().where(ps.col("third") == 1).batch(2))
    next(batches)

    for _ in range(2):
        with pytest.raises(ps.errors.DataChangedError) as caught:
            next(batches)
        assert str(caught.value) == (
            "part-1.parquet, row group 0: 1 rows were found where the plan has 2 of 3. The file was changed after the table "
            "was opened. Open the table again; a state saved before cannot be resumed."
        )


def test_an_unwritable_cache_is_only_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting works without a writable cache. The warning says what to do."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="Set PENSTOCK_CACHE_DIR to a writable directory"):
        assert rows(table()) == 4


def test_the_cache_directory_follows_the_desktop_standard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PENSTOCK_CACHE_DIR the cache is in XDG_CACHE_HOME, or in ~/.cache."""
    from penstock._engine.storage.filesystem import cache_directory

    monkeypatch.delenv("PENSTOCK_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "penstock"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "penstock"
