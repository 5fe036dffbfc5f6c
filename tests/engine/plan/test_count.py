"""Counts of a row filter: exact, kept on disk, and never trusted blindly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.testing import MemoryFormat


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache directory of this test's own."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "counts"


def table() -> MemoryFormat:
    """Return two files whose statistics do not settle the filter."""
    return MemoryFormat.of({"id": range(12), "third": [number % 3 for number in range(12)]}, row_group_rows=3, files=2)


def rows(of: MemoryFormat) -> int:
    """Return how many rows pass the filter, by a table opened anew."""
    return of.open().where(ps.col("third") == 1).num_rows


def test_rows_are_counted_once_and_kept(cache: Path) -> None:
    """A second job over the same table reads footers, and no data to count."""
    first, second = table(), table()

    assert rows(first) == rows(second) == 4
    assert len(list(cache.iterdir())) == 1
    assert sum(second.opened.values()) == 2
    assert sum(first.opened.values()) > 2


def test_footers_are_read_once_for_all_questions_of_a_table() -> None:
    """Another shuffle, seed or limit needs no footer again, and neither does a filter, which needs their statistics."""
    of = table()
    ds = of.open()
    for asked in (ds, ds.shuffle(seed=3), ds.limit(5), ds.shuffle(ps.RowGroupShuffle())):
        assert asked.num_rows in (5, 12)
    for bound in (3, 6, 9):
        assert ds.where(ps.col("id") >= bound).num_rows == 12 - bound

    assert sum(of.opened.values()) == 2


def test_what_statistics_settle_is_not_counted(cache: Path) -> None:
    """A filter that row groups pass or fail as a whole needs no pass over the data."""
    of = table()

    assert of.open().where(ps.col("id") >= 6).num_rows == 6
    assert sum(of.opened.values()) == 2
    assert not cache.exists()


def test_another_filter_or_table_has_counts_of_its_own(cache: Path) -> None:
    """Counts are named by files, deletes and filter."""
    of = table()
    changed = MemoryFormat.of(
        {"id": range(12), "third": [number % 3 for number in range(12)]}, row_group_rows=3, files=2, deletes={0: [1]}
    )

    assert [of.open().where(ps.col("third") == value).num_rows for value in (0, 1, 2)] == [4, 4, 4]
    assert rows(changed) == 3
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_damaged_counts_are_counted_again(cache: Path, content: bytes | None) -> None:
    """What does not fit is not used: an empty file, nonsense, counts of another length."""
    rows(table())
    kept = next(cache.iterdir())
    if content is None:
        np.save(kept, np.array([1, 2]))
    else:
        kept.write_bytes(content)

    assert rows(table()) == 4
    assert np.load(kept).tolist() == [1, 1, 1, 1]


def test_wrong_counts_are_found_out_when_rows_are_read(cache: Path) -> None:
    """The filter runs again on reading and must keep as many rows; the error says where and what to do."""
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
    """Counting goes on; the warning says what can be done."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="Set PENSTOCK_CACHE_DIR to a writable directory"):
        assert rows(table()) == 4


def test_the_cache_lies_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word of the user it is the cache directory of the desktop standard."""
    from penstock._engine.storage.filesystem import cache_directory

    monkeypatch.delenv("PENSTOCK_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "penstock"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "penstock"
