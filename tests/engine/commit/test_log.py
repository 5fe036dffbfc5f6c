"""Markers of changes: what readers make of them, and that what they hold is not trusted."""

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
    """Return a place on each kind of storage, where markers tell what belongs to the table."""
    return marked if request.param == "disk" else Lake(MEMORY, f"/{secrets.token_hex(8)}/t")


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a place on a local disk, where markers tell what belongs to the table."""
    monkeypatch.setattr(swap, "begin", unsupported)
    return Lake(LOCAL, f"{tmp_path}/lake/t")


names = st.from_regex(r"[a-z=%]{1,6}(/[a-z]{1,3}){0,2}", fullmatch=True)


@given(st.lists(names), st.dictionaries(names, st.text()), st.dictionaries(names, st.binary()), st.integers())
def test_a_marker_tells_what_it_was_told(added: list[str], removed: dict[str, str], small: dict[str, bytes], when: int) -> None:
    """What is read of a marker is what was written."""
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
def test_a_marker_may_hold_anything(told: Any) -> None:
    """Whatever a marker holds, it is a change whose names stay inside the table, or an error of ours that names it."""
    if isinstance(told, dict):
        told.setdefault("penstock", 1)
    found: list[str] = []
    said = ""
    try:
        commit = markers.load(json.dumps(told).encode(), "the/marker")
        found = [*commit.added, *commit.removed, *commit.small]
    except DataError as error:
        said = str(error)

    assert not said or said.startswith("The commit marker the/marker cannot be read: ")
    assert not [name for name in found if ".." in name or name.startswith("/")]


@pytest.mark.parametrize(
    ("data", "why"),
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
def test_a_broken_marker_is_named(marked: Lake, data: bytes, why: str) -> None:
    """Readers and writers refuse a table whose marker they cannot read, and say which it is."""
    marker = f"{marked.path}/_penstock/0123456789ab.committed"
    Path(marker).parent.mkdir(parents=True)
    marked.put(marker, data)
    expected = (
        f"The commit marker {marker} cannot be read: {why}. Penstock wrote it to record which files belong to the table. "
        "Write the table again to another path, or delete the marker if you know which files are right."
    )

    calls: list[Callable[[], Any]] = [lambda: marked.begin("append"), marked.ids, marked.small]
    for call in calls:
        with pytest.raises(DataError) as caught:
            call()

        assert str(caught.value) == expected


def test_nothing_is_asked_where_no_change_is_under_way() -> None:
    """Without a marker in the listing, the listing is the table, also where directories have our name."""
    infos = [pafs.FileInfo(path) for path in ("/my_penstock/a.parquet", "/my_penstock/_common_metadata")]

    assert visible(None, "/my_penstock", infos) is infos
    assert small_file(None, "/my_penstock", "_metadata", infos) is None


def test_files_beside_a_marker_are_found_by_whole_names(marked: Lake) -> None:
    """A directory whose name only ends like the one of markers holds data."""
    lake = Lake(LOCAL, f"{marked.path}/my_penstock")
    lake.change("error", [1])
    lake.fill(lake.begin("append"), [2])

    assert lake.ids() == [1]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_readers_go_by_a_change_that_was_not_tidied_up(lake: Lake, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    """From the moment the marker is there, rows and small files are the new ones; the next writer does the rest."""
    lake.change("error", [1, 2], b"old")
    change = untidied(lake, monkeypatch, mode, [3, 4])
    seen = lake.ids(), lake.small()
    lake.begin("append").abort()

    rows = [1, 2, 3, 4] if mode == "append" else [3, 4]
    assert seen == (lake.ids(), lake.small()) == (rows, b"new")
    assert len([name for name in lake.names() if change.id in name]) == 2
    assert len(lake.names()) == len(rows) + 1


def test_the_later_of_two_small_files_holds(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two changes were not tidied up, small files are those of the one made last, also after that."""
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


def test_a_file_that_came_anew_under_a_removed_name_is_another(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overwrite removed the file that it saw, not one that other software wrote under that name later."""
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


def test_a_listing_that_no_longer_holds_is_made_again(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that was made, tidied up or given up since the listing is seen whole, or not at all."""
    table = f"{marked.path}/"
    marked.change("error", [1], b"old")
    late = marked.begin("overwrite")
    marked.fill(late, [2, 3])
    begun = marked.infos()
    monkeypatch.setattr(markers, "complete", unsupported)
    with pytest.warns(RuntimeWarning, match="no such step here"):
        late.finish({"_common_metadata": b"new"})
    monkeypatch.undo()
    made = marked.infos()
    partly = [info for info in made if "day=0" not in info.path]
    from_begun, from_partly = (
        {info.path for info in visible(LOCAL, marked.path, infos)} - {f"{table}_common_metadata"} for infos in (begun, partly)
    )
    marked.begin("append").abort()
    from_made = visible(LOCAL, marked.path, made)
    other = marked.begin("append")
    marked.fill(other, [5])
    given_up = marked.infos()
    other.abort()

    new = {f"{table}day=0/part-00000-{late.id}.parquet", f"{table}day=1/part-00001-{late.id}.parquet"}
    assert from_begun == from_partly == {info.path for info in from_made} - {f"{table}_common_metadata"} == new
    assert {info.path for info in visible(LOCAL, marked.path, given_up)} - {f"{table}_common_metadata"} == new
    assert small_file(LOCAL, marked.path, "_common_metadata", made) == b"new"


def test_a_table_that_changes_all_the_time_is_told(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listings are not made for ever."""
    marked.begin("append")
    monkeypatch.setattr(markers, "_are_still_pending", lambda *_: False)

    with pytest.raises(DataChangedError) as caught:
        marked.ids()

    assert str(caught.value) == (
        f"{marked.path} changes faster than it can be listed: 8 listings were out of date. Wait, then open it again."
    )


def test_a_file_that_was_removed_after_its_change_is_simply_gone(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker that was left names files that came; one that somebody deleted since is not waited for."""
    change = untidied(marked, monkeypatch, "append", [1, 2])
    Path(marked.path, f"day=0/part-00001-{change.id}.parquet").unlink()

    assert marked.ids() == [1]


def test_tables_that_are_listed_together_are_told_apart(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers speak of the table that they lie in, and a listing of several stays in order."""
    one, two = Lake(LOCAL, f"{marked.path}/one"), Lake(LOCAL, f"{marked.path}/two")
    one.change("error", [1])
    two.change("error", [2])
    stale = marked.infos()
    untidied(one, monkeypatch, "overwrite", [3])
    fresh = marked.infos()
    partly = [info for info in fresh if not re.search("one/day=1", info.path)]

    assert marked.ids() == [2, 3]
    assert [info.path for info in visible(LOCAL, marked.path, partly)] == [
        info.path for info in visible(LOCAL, marked.path, fresh)
    ]
    assert visible(LOCAL, marked.path, stale) == stale


def test_a_change_that_was_begun_is_left_alone_for_a_day(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere than on a local disk the dead cannot be told from the slow: only old changes are dropped."""
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


def test_a_slow_writer_says_that_it_lives(marked: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker is written anew while files are, so that it does not grow old."""
    change = marked.begin("append")
    marker = Path(marked.path, "_penstock", f"{change.id}.pending")
    os.utime(marker, (0, 0))
    marked.fill(change, [1])
    early = marker.stat().st_mtime
    monkeypatch.setattr(in_place, "RENEW_SECONDS", -1)
    marked.fill(change, [1])

    assert early == 0
    assert marker.stat().st_mtime > 1e9


def test_a_marker_whose_age_nobody_knows_is_not_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither storage nor marker tell the time, the change is left alone."""
    lake = Lake(MEMORY, f"/{secrets.token_hex(8)}/t")
    lake.put(f"{lake.path}/_penstock/0123456789ab.pending", b"soon")
    monkeypatch.setattr(markers, "ABANDONED_SECONDS", -1)

    lake.change("append", [1])

    assert "_penstock/0123456789ab.pending" in lake.names()


def interrupted(*_: Any) -> None:
    """Stop, as a user does."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("tidied", [False, True])
def test_a_change_that_is_made_cannot_be_aborted(lake: Lake, monkeypatch: pytest.MonkeyPatch, *, tidied: bool) -> None:
    """Whoever is interrupted right after the change was made and aborts does not undo it, nor what others did since."""
    lake.change("error", [1], b"old")
    change = lake.begin("overwrite")
    lake.fill(change, [2, 3])
    with monkeypatch.context() as patch:
        patch.setattr(markers, "complete", interrupted)
        with pytest.raises(KeyboardInterrupt):
            change.finish({"_common_metadata": b"new"})
    if tidied:
        lake.change("append", [4], b"new")
    change.abort()

    assert lake.ids() == [2, 3, *([4] if tidied else [])]
    assert len(lake.names()) == len(lake.ids()) + 1


def test_a_change_that_could_not_be_confirmed_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that did its work and failed to say so has made the change."""

    class Silent(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
        def move(self, source: str, target: str) -> None:
            super().move(source, target)
            raise OSError("timed out")

    lake = Lake(pafs.PyFileSystem(Silent(MEMORY.handler.fs)), f"/{secrets.token_hex(8)}/t")
    monkeypatch.setattr(in_place, "OBJECT_STORES", frozenset())

    lake.change("error", [1, 2])

    assert lake.ids() == [1, 2]


def test_a_store_of_objects_gets_the_marker_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an object appears whole, nothing is moved, and no directory is made."""

    class Objects(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
        move = create_dir = interrupted

    lake = Lake(pafs.PyFileSystem(Objects(MEMORY.handler.fs)), f"/{secrets.token_hex(8)}/t")
    monkeypatch.setattr(in_place, "OBJECT_STORES", frozenset({lake.filesystem.type_name}))

    lake.change("error", [1, 2])
    lake.change("overwrite", [3])

    assert lake.ids() == [3]
    assert len(lake.names()) == 2
