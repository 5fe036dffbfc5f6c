"""Commit markers: what readers make of them, and that their contents are validated."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lake import LOCAL, MEMORY, Lake, parquet_bytes, unsupported, untidied
from pyarrow import fs as pafs

from penstock._engine.commit import in_place, swap
from penstock._engine.commit import log as markers
from penstock._engine.commit.log import Commit, small_file, visible
from penstock._engine.commit.target import Mode
from penstock.errors import DataChangedError, DataError


@pytest.fixture(params=["disk", "memory"])
def lake(request: pytest.FixtureRequest, marked: Lake) -> Lake:
    """Return a lake on each kind of storage, where changes use commit markers."""
    return marked if request.param == "disk" else Lake(MEMORY, f"/{secrets.token_hex(8)}/t")


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a lake on a local disk, where changes use commit markers."""
    monkeypatch.setattr(swap, "begin", unsupported)
    return Lake(LOCAL, f"{tmp_path}/lake/t")


names = st.from_regex(r"[a-z=%]{1,6}(/[a-z]{1,3}){0,2}", fullmatch=True)


@given(st.lists(names), st.dictionaries(names, st.text()), st.dictionaries(names, st.binary()), st.integers())
def test_a_marker_round_trips(added: list[str], removed: dict[str, str], small: dict[str, bytes], when: int) -> None:
    """A loaded marker equals the commit that was dumped."""
    commit = Commit(id="0123456789ab", time=when, added=tuple(added), removed=removed, small=small)

    assert markers.load(markers.dump(commit), "/t/_penstock/0123456789ab.committed") == commit


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "../a", "/a", "a/b", ""]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("penstock", "time", "added", "removed", "small"), JSON)) | JSON)
def test_any_marker_content_is_valid_or_reported(content: Any) -> None:
    """A marker of any content loads with names inside the table, or raises an error that names the marker."""
    if isinstance(content, dict):
        content.setdefault("penstock", 1)
    found: list[str] = []
    message = ""
    try:
        commit = markers.load(json.dumps(content).encode(), "the/marker")
        found = [*commit.added, *commit.removed, *commit.small]
    except DataError as error:
        message = str(error)

    assert not message or message.startswith("The commit marker the/marker cannot be read: ")
    assert not [name for name in found if ".." in name or name.startswith("/")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"[]", "it is not of version 1, the only known version"),
        (b'{"penstock": 2}', "it is not of version 1, the only known version"),
        (b'{"penstock": 1}', "it does not list the added and removed files"),
        (b'{"penstock": 1, "added": [], "removed": {}, "small": {}, "time": true}', "its time is True"),
        (
            b'{"penstock": 1, "added": ["a", "../b"], "removed": {}, "small": {}, "time": 1}',
            "it names '../b', which is not a file of the table",
        ),
        (
            b'{"penstock": 1, "added": [], "removed": {"a": 1}, "small": {}, "time": 1}',
            "its stamps or small files are not text",
        ),
        (
            b'{"penstock": 1, "added": [], "removed": {}, "small": {"_a": "?"}, "time": 1}',
            "Only base64 data is allowed",
        ),
    ],
)
def test_an_invalid_marker_raises(marked: Lake, data: bytes, reason: str) -> None:
    """Readers and writers raise an error that names an invalid marker and says what is wrong with it."""
    marker = f"{marked.path}/_penstock/0123456789ab.committed"
    Path(marker).parent.mkdir(parents=True)
    marked.put(marker, data)
    expected = (
        f"The commit marker {marker} cannot be read: {reason}. Penstock wrote it to record which files belong to the table. "
        "Write the table again to another path, or delete the marker if you know which files are right."
    )

    calls: list[Callable[[], Any]] = [lambda: marked.begin("append"), marked.ids, marked.small]
    for call in calls:
        with pytest.raises(DataError) as caught:
            call()

        assert str(caught.value) == expected


def test_a_listing_without_markers_needs_no_requests() -> None:
    """A listing without a marker is the table, even if a directory's name ends like that of the markers."""
    infos = [pafs.FileInfo(path) for path in ("/my_penstock/a.parquet", "/my_penstock/_common_metadata")]

    assert visible(None, "/my_penstock", infos) is infos
    assert small_file(None, "/my_penstock", "_metadata", infos) is None


def test_marker_directories_are_matched_by_whole_names(marked: Lake) -> None:
    """Markers work in a table whose own name ends like that of the marker directory."""
    lake = Lake(LOCAL, f"{marked.path}/my_penstock")
    lake.change("error", [1])
    lake.fill(lake.begin("append"), [2])

    assert lake.ids() == [1]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_readers_see_a_committed_change_before_clean_up(lake: Lake, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    """Once the marker exists, readers see the new rows and small files. The next writer finishes the clean-up."""
    lake.change("error", [1, 2], b"old")
    change = untidied(lake, monkeypatch, mode, [3, 4])
    seen = lake.ids(), lake.small()
    lake.begin("append").abort()

    rows = [1, 2, 3, 4] if mode == "append" else [3, 4]
    assert seen == (lake.ids(), lake.small()) == (rows, b"new")
    assert len([name for name in lake.names() if change.id in name]) == 2
    assert len(lake.names()) == len(rows) + 1


def test_the_latest_small_file_counts(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """If several changes were not cleaned up, the small file of the last commit counts, also after recovery."""
    marked.change("error", [1], b"zero")
    changes = [marked.begin("append") for _ in range(5)]
    for number, change in enumerate(changes):
        monkeypatch.setattr(markers, "complete", unsupported)
        with pytest.warns(RuntimeWarning, match="no such step here"):
            change.finish({"_common_metadata": b"%d" % number})
    seen = marked.small()
    monkeypatch.undo()
    markers.recover(marked.place)

    assert seen == marked.small() == b"4"


def test_a_new_file_under_a_removed_name_stays(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overwrite removes the file that it saw, not a file that other software writes later under that name."""
    table = Path(marked.path)
    table.mkdir(parents=True)
    (table / "x.parquet").write_bytes(parquet_bytes([1]))
    untidied(marked, monkeypatch, "overwrite", [2])
    before = marked.ids()
    (table / "x.parquet").write_bytes(parquet_bytes([8, 9]))
    seen = marked.ids()
    marked.begin("append").abort()

    assert before == [2]
    assert seen == marked.ids() == [2, 8, 9]


def test_an_outdated_listing_is_repeated(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change committed, cleaned up or aborted since the listing is seen completely or not at all."""
    table = f"{marked.path}/"
    marked.change("error", [1], b"old")
    late = marked.begin("overwrite")
    marked.fill(late, [2, 3])
    pending = marked.infos()
    monkeypatch.setattr(markers, "complete", unsupported)
    with pytest.warns(RuntimeWarning, match="no such step here"):
        late.finish({"_common_metadata": b"new"})
    monkeypatch.undo()
    committed = marked.infos()
    partial = [info for info in committed if "day=0" not in info.path]
    from_pending, from_partial = (
        {info.path for info in visible(LOCAL, marked.path, infos)} - {f"{table}_common_metadata"}
        for infos in (pending, partial)
    )
    marked.begin("append").abort()
    from_committed = visible(LOCAL, marked.path, committed)
    other = marked.begin("append")
    marked.fill(other, [5])
    aborted = marked.infos()
    other.abort()

    new = {f"{table}day=0/part-00000-{late.id}.parquet", f"{table}day=1/part-00001-{late.id}.parquet"}
    assert from_pending == from_partial == {info.path for info in from_committed} - {f"{table}_common_metadata"} == new
    assert {info.path for info in visible(LOCAL, marked.path, aborted)} - {f"{table}_common_metadata"} == new
    assert small_file(LOCAL, marked.path, "_common_metadata", committed) == b"new"


def test_a_table_that_changes_all_the_time_raises(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing a table raises DataChangedError after several outdated listings."""
    marked.begin("append")
    monkeypatch.setattr(markers, "_are_still_pending", lambda *_: False)

    with pytest.raises(DataChangedError) as caught:
        marked.ids()

    assert str(caught.value) == (
        f"{marked.path} changes faster than it can be listed: 8 listings were out of date. Wait, then open it again."
    )


def test_a_file_deleted_after_its_commit_is_gone(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers do not wait for a file of a leftover marker that was deleted after the commit."""
    change = untidied(marked, monkeypatch, "append", [1, 2])
    Path(marked.path, f"day=0/part-00001-{change.id}.parquet").unlink()

    assert marked.ids() == [1]


def test_markers_apply_to_their_own_table_only(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a listing of several tables, a marker applies to its own table only, and the files stay in order."""
    one, two = Lake(LOCAL, f"{marked.path}/one"), Lake(LOCAL, f"{marked.path}/two")
    one.change("error", [1])
    two.change("error", [2])
    stale = marked.infos()
    untidied(one, monkeypatch, "overwrite", [3])
    fresh = marked.infos()
    partial = [info for info in fresh if not re.search("one/day=1", info.path)]

    assert marked.ids() == [2, 3]
    assert [info.path for info in visible(LOCAL, marked.path, partial)] == [
        info.path for info in visible(LOCAL, marked.path, fresh)
    ]
    assert visible(LOCAL, marked.path, stale) == stale


def test_a_pending_change_is_dropped_only_when_old(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers cannot tell a dead writer from a slow one, so only old pending changes are dropped."""
    lake.change("error", [1])
    dead = lake.begin("append")
    lake.fill(dead, [2, 3])
    lake.begin("append").abort()
    young = [name for name in lake.names() if dead.id in name]
    monkeypatch.setattr(markers, "ABANDONED_SECONDS", -1)
    lake.begin("append").abort()
    old = [name for name in lake.names() if dead.id in name]

    with pytest.raises(DataChangedError) as caught:
        dead.finish({})

    assert (len(young), old, lake.ids()) == (3, [], [1])
    assert str(caught.value) == (
        f"The change {dead.id} of lake has lost its marker {lake.path}/_penstock/{dead.id}.pending. Another writer has "
        "overwritten the table, or removed the marker as abandoned. Nothing was changed. Write again."
    )


def test_a_slow_writer_renews_its_marker(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer renews its marker while it writes files, so that the change does not count as abandoned."""
    change = marked.begin("append")
    marker = Path(marked.path, "_penstock", f"{change.id}.pending")
    os.utime(marker, (0, 0))
    marked.fill(change, [1])
    early = marker.stat().st_mtime
    monkeypatch.setattr(in_place, "RENEW_SECONDS", -1)
    marked.fill(change, [1])

    assert early == 0
    assert marker.stat().st_mtime > 1e9


def test_a_marker_of_unknown_age_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """If neither the storage nor the marker gives a time, the pending change is kept."""
    lake = Lake(MEMORY, f"/{secrets.token_hex(8)}/t")
    lake.put(f"{lake.path}/_penstock/0123456789ab.pending", b"soon")
    monkeypatch.setattr(markers, "ABANDONED_SECONDS", -1)

    lake.change("append", [1])

    assert "_penstock/0123456789ab.pending" in lake.names()


def interrupt(*_: Any) -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("cleaned_up", [False, True])
def test_a_committed_change_cannot_be_aborted(lake: Lake, monkeypatch: pytest.MonkeyPatch, *, cleaned_up: bool) -> None:
    """Aborting after an interrupt right after the commit undoes neither the change nor later changes of others."""
    lake.change("error", [1], b"old")
    change = lake.begin("overwrite")
    lake.fill(change, [2, 3])
    with monkeypatch.context() as patch:
        patch.setattr(markers, "complete", interrupt)
        with pytest.raises(KeyboardInterrupt):
            change.finish({"_common_metadata": b"new"})
    if cleaned_up:
        lake.change("append", [4], b"new")
    change.abort()

    assert lake.ids() == [2, 3, *([4] if cleaned_up else [])]
    assert len(lake.names()) == len(lake.ids()) + 1


def test_an_unconfirmed_commit_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change counts as committed if storage commits it but raises an error."""

    class Silent(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
        def move(self, source: str, target: str) -> None:
            super().move(source, target)
            raise OSError("timed out")

    lake = Lake(pafs.PyFileSystem(Silent(MEMORY.handler.fs)), f"/{secrets.token_hex(8)}/t")
    monkeypatch.setattr(in_place, "OBJECT_STORES", frozenset())

    lake.change("error", [1, 2])

    assert lake.ids() == [1, 2]


def test_an_object_store_gets_the_marker_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an object store, where objects appear at once, nothing is moved and no directory is created."""

    class Objects(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
        move = create_dir = interrupt

    lake = Lake(pafs.PyFileSystem(Objects(MEMORY.handler.fs)), f"/{secrets.token_hex(8)}/t")
    monkeypatch.setattr(in_place, "OBJECT_STORES", frozenset({lake.filesystem.type_name}))

    lake.change("error", [1, 2])
    lake.change("overwrite", [3])

    assert lake.ids() == [3]
    assert len(lake.names()) == 2
