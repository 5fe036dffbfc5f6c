"""Changes of a table: what each mode does, what is refused, and that no file is lost or left behind."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lake import LOCAL, MEMORY, Lake, parquet_bytes, unsupported

from penstock._engine.commit import in_place, swap
from penstock._engine.commit.change import begin
from penstock._engine.commit.target import Mode, check_name, check_small, hidden, is_overwritten
from penstock._engine.storage.filesystem import stamp
from penstock.errors import ArgumentError, DataError


@pytest.fixture(params=["swap", "in place", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a lake on each kind of storage. On a local disk it is tested with and without exchanging directories."""
    monkeypatch.setattr(swap, "GRACE_SECONDS", 0)
    if request.param == "memory":
        return Lake(MEMORY, f"/{secrets.token_hex(8)}/t")
    if request.param == "in place":
        monkeypatch.setattr(swap, "begin", unsupported)
    return Lake(LOCAL, f"{tmp_path}/lake/t")


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a lake on a local disk, where directories are exchanged."""
    monkeypatch.setattr(swap, "GRACE_SECONDS", 0)
    return Lake(LOCAL, f"{tmp_path}/lake/t")


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a lake on a local disk, where changes use commit markers."""
    monkeypatch.setattr(swap, "begin", unsupported)
    return Lake(LOCAL, f"{tmp_path}/lake/t")


def test_a_table_appears_when_the_change_finishes(lake: Lake) -> None:
    """Readers see nothing of a change before `finish`, and all of it afterwards."""
    change = lake.begin("error")
    lake.fill(change, [1, 2])
    before, small_before = lake.ids(), lake.small()
    change.finish({"_common_metadata": b"one"})

    assert (before, small_before) == ([], None)
    assert (lake.ids(), lake.small()) == ([1, 2], b"one")


def test_modes_add_and_replace(lake: Lake) -> None:
    """Append keeps existing rows and overwrite removes them. Both replace small files."""
    lake.change("error", [1, 2], b"one")
    lake.change("append", [3], b"two")
    appended = lake.ids(), lake.small()
    last = lake.change("overwrite", [4], b"three")

    assert appended == ([1, 2, 3], b"two")
    assert (lake.ids(), lake.small()) == ([4], b"three")
    assert lake.names() == ["_common_metadata", f"day=0/part-00000-{last.id}.parquet"]


def test_a_change_without_files_replaces_small_files_only(lake: Lake) -> None:
    """A change without data files may replace `_common_metadata`. All rows stay."""
    lake.change("error", [1], b"one")

    lake.begin("append").finish({"_common_metadata": b"two"})

    assert (lake.ids(), lake.small()) == ([1], b"two")


def test_an_aborted_change_leaves_no_trace(lake: Lake) -> None:
    """`abort`, called once or twice, leaves the previous files only, and removes the parents that were created."""
    top = Path(lake.path).parent
    for _ in range(2):
        change = lake.begin("error")
        lake.fill(change, [1, 2])
        change.abort()
        change.abort()
    empty = lake.names(), top.exists()
    lake.change("error", [1])
    before = lake.names()
    change = lake.begin("overwrite")
    lake.fill(change, [3])
    change.abort()

    assert empty == ([], False)
    assert (lake.names(), lake.ids()) == (before, [1])
    if lake.filesystem is LOCAL:
        assert [each.name for each in top.iterdir()] == ["t"]


def test_abort_after_finish_does_nothing(lake: Lake) -> None:
    """Aborting a finished change does not undo it."""
    change = lake.change("error", [1, 2])

    change.abort()

    assert lake.ids() == [1, 2]


def test_error_mode_refuses_a_table(lake: Lake) -> None:
    """With mode="error", `begin` raises if the table already has data."""
    change = lake.change("error", [0])
    expected = (
        f'lake holds data already: day=0/part-00000-{change.id}.parquet; mode="error" expects an empty place. '
        'Use mode="append" to add rows or mode="overwrite" to replace all, or give another path.'
    )

    with pytest.raises(ArgumentError) as caught:
        lake.begin("error")

    assert str(caught.value) == expected


def test_the_later_of_two_first_writers_is_refused(lake: Lake) -> None:
    """With mode="error", `finish` raises if another writer created the table meanwhile. The other's rows stay."""
    late = lake.begin("error")
    lake.fill(late, [7])
    lake.change("error", [1])

    with pytest.raises(ArgumentError, match="lake holds data already: day"):
        late.finish({})
    late.abort()

    assert lake.ids() == [1]


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_hidden_files_are_no_table_and_stay(lake: Lake, mode: Mode) -> None:
    """A directory of hidden files counts as empty. Hidden files that do not belong to a table are never deleted."""
    for name in ("_SUCCESS", ".ssh/id", "_notes"):
        if lake.filesystem is LOCAL:
            Path(lake.path, name).parent.mkdir(parents=True, exist_ok=True)
        lake.put(f"{lake.path}/{name}", b"mine")

    lake.change(mode, [1])

    kept = {".ssh/id", "_notes"} | (set() if mode == "overwrite" else {"_SUCCESS"})
    assert lake.ids() == [1]
    assert {name for name in lake.names() if hidden(name)} == kept | {"_common_metadata"}


@pytest.mark.parametrize("others", [["notes.txt"], ["src/a.py", "b.csv", "part-00000.csv", "part-00000-c000.json"]])
def test_overwrite_replaces_tables_only(lake: Lake, others: list[str]) -> None:
    """Overwrite refuses a directory with files other than Parquet, even if they appear after the change began."""
    change = lake.change("error", [1])
    late = lake.begin("overwrite")
    for name in others:
        if lake.filesystem is LOCAL:
            Path(lake.path, name).parent.mkdir(exist_ok=True)
        lake.put(f"{lake.path}/{name}", b"mine")
    first_names = ", ".join(sorted(others)[:3]) + (" and 1 more" if len(others) > 3 else "")
    expected = (
        f'lake holds files that are not Parquet: {first_names}; mode="overwrite" replaces directories of Parquet files only. '
        "Check the path; if it is right, remove those files first."
    )

    with pytest.raises(ArgumentError) as caught:
        lake.begin("overwrite")
    with pytest.raises(ArgumentError) as caught_late:
        late.finish({})
    late.abort()

    assert str(caught.value) == str(caught_late.value) == expected
    assert lake.names() == sorted(["_common_metadata", f"day=1/part-00000-{change.id}.parquet", *others])


def test_overwrite_knows_spark_names(lake: Lake) -> None:
    """Overwrite replaces data files that Spark wrote, with or without a file name extension."""
    if lake.filesystem is LOCAL:
        Path(lake.path).mkdir(parents=True)
    lake.put(f"{lake.path}/part-r-00003-2f9e1c5b-0000-4cfa-bd5e-111122223333.gz.parquet", b"")
    lake.put(f"{lake.path}/part-00000-2f9e1c5b-0000-4cfa-bd5e-111122223333-c000", b"")

    lake.change("overwrite", [1])

    assert lake.ids() == [1]


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("_delta_log/00.json", "a Delta table"),
        (".hoodie/x", "a Hudi table"),
        ("_spark_metadata/0", "the output of a Spark stream"),
    ],
)
@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_a_table_with_a_log_is_refused(marked: Lake, mode: Mode, log: str, kind: str) -> None:
    """A directory with the log of another table format is refused, because its log would not list new files."""
    Path(marked.path, log).parent.mkdir(parents=True)
    marked.put(f"{marked.path}/{log}", b"{}")
    how = 'format="delta"' if log.startswith("_delta_log") else "software that writes such logs"
    expected = (
        f"lake is {kind}: it holds {log}. Its log lists the files of the table, so that files beside the log would not count. "
        f"Write with {how}, or give another path."
    )

    with pytest.raises(ArgumentError) as caught:
        marked.begin(mode)

    assert str(caught.value) == expected


def test_an_invalid_path_or_mode_raises(tmp_path: Path) -> None:
    """A path that is a file, is below a file or is the root raises ArgumentError, and so does an unknown mode."""
    file = tmp_path / "file"
    file.touch()
    cases: list[tuple[str, Any, str]] = [
        (
            str(file),
            "append",
            "u is a file; expected a directory, or a path where nothing exists yet. Give another path.",
        ),
        (f"{file}/t", "append", f"u is below the file {file}; expected a path below directories. Give another path."),
        ("/", "append", "u is the root of its filesystem; expected a directory below it. Give a path with a name."),
        (
            str(tmp_path),
            "replace",
            """mode='replace' is not known; expected "error", "append" or "overwrite". Give one of them.""",
        ),
    ]

    for path, mode, expected in cases:
        with pytest.raises(ArgumentError) as caught:
            begin(LOCAL, path, mode, url="u")

        assert str(caught.value) == expected


@pytest.mark.parametrize("name", ["../x-{}", "/x-{}", "a/../x-{}", "a//x-{}", "./x-{}", "", "a\\x-{}", "x-{}/"])
def test_names_that_lead_out_of_the_table_are_refused(lake: Lake, name: str) -> None:
    """Names of data files and small files must be relative, without `.` or `..` parts."""
    change = lake.begin("error")
    named = name.format(change.id)
    expected = f"{named!r} does not name a file inside a table; expected a relative name without .. parts."

    with pytest.raises(ArgumentError) as caught:
        change.path(named)
    with pytest.raises(ArgumentError, match="does not name a file inside a table"):
        change.finish({named: b""})
    change.abort()

    assert str(caught.value) == expected


@given(st.text("ab_=./\\", max_size=8))
def test_a_data_file_name_is_inside_visible_and_has_the_id(name: str) -> None:
    """Exactly the names are accepted that lie below the table, are not hidden and contain the id of the change."""
    change = "0123456789ab"

    try:
        check_name(f"{name}{change}", change)
    except ArgumentError:
        accepted = False
    else:
        accepted = True

    parts = f"{name}{change}".split("/")
    assert accepted == ("\\" not in name and not hidden("/".join(parts)) and not {"", ".", ".."} & set(parts))


def test_names_of_the_wrong_kind_are_refused() -> None:
    """The name of a data file contains the id of its change. The name of a small file is hidden from readers."""
    with pytest.raises(ArgumentError) as data:
        check_name("part-0.parquet", "0123456789ab")
    with pytest.raises(ArgumentError) as small:
        check_small("part-0.parquet")
    with pytest.raises(ArgumentError, match="cannot be called '_penstock'"):
        check_small("_penstock")

    assert str(data.value) == (
        "A data file cannot be called 'part-0.parquet'; expected a name that is not hidden and contains the id of its change. "
        "Use one like part-00000-0123456789ab.parquet."
    )
    assert str(small.value) == (
        "A small file cannot be called 'part-0.parquet'; expected a name that begins with _. Use one like _common_metadata."
    )


def test_overwrite_replaces_what_writers_of_tables_leave() -> None:
    """An overwrite replaces data files and known leftovers of writers, but no other hidden files."""
    assert [
        is_overwritten(name) for name in ("a=1/x.parquet", "_metadata", ".x.parquet.crc", "_temporary/0/x", ".git/x", "_x")
    ] == ([True, True, True, True, False, False])


def test_an_append_keeps_files_as_they_were(local: Lake) -> None:
    """An append keeps mode bits of directories, and size and time of files, so that running readers continue."""
    local.change("error", [1, 2])
    table = Path(local.path)
    table.chmod(0o2750)
    (table / "day=1").chmod(0o700)
    (table / "empty").mkdir()
    (table / "link").symlink_to("day=1")
    before = {info.path: stamp(info) for info in local.infos()}
    local.change("append", [3])

    after = {info.path: stamp(info) for info in local.infos()}
    assert {path: after[path] for path in before if "_common" not in path} == {
        path: one for path, one in before.items() if "_common" not in path
    }
    assert stat.S_IMODE(table.stat().st_mode) == 0o2750
    assert stat.S_IMODE((table / "day=1").stat().st_mode) == 0o700
    assert (table / "link").readlink() == Path("day=1")
    assert (table / "empty").is_dir()


def test_mode_bits_of_the_table_directory_stay(local: Lake) -> None:
    """A change keeps the mode bits of the directory, because the user decided who may read it."""
    table = Path(local.path)
    table.mkdir(parents=True)
    table.chmod(0o710)
    found = []
    for mode in ("error", "overwrite"):
        local.change(mode, [1])
        found.append(stat.S_IMODE(table.stat().st_mode))

    assert found == [0o710, 0o710]


def test_a_link_to_a_table_stays_a_link(local: Lake, tmp_path: Path) -> None:
    """If the path of a table is a symbolic link, its target is exchanged, not the link."""
    local.change("error", [1])
    link = tmp_path / "current"
    link.symlink_to(local.path)
    linked = Lake(LOCAL, str(link))
    linked.change("append", [2])
    linked.change("append", [3])

    assert link.readlink() == Path(local.path)
    assert local.ids() == linked.ids() == [1, 2, 3]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["current", "lake"]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_files_that_others_add_meanwhile_are_not_lost(local: Lake, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    """Files that others add or replace in the old directory just before the exchange are in the new one."""
    local.change("error", [1, 2])
    table, real = Path(local.path), swap.exchange
    (replaced,) = (table / "day=0").iterdir()

    def interfere(one: Path, other: Path) -> None:
        (table / "day=new").mkdir()
        (table / "day=new" / "x.parquet").write_bytes(parquet_bytes([8]))
        spare = table / "spare"
        spare.write_bytes(parquet_bytes([9]))
        spare.rename(replaced)
        real(one, other)

    monkeypatch.setattr(swap, "exchange", interfere)
    local.change(mode, [5])

    assert local.ids() == ([1, 5, 8, 9] if mode == "append" else [5, 8, 9])
    assert [each.name for each in table.parent.iterdir()] == ["t"]


def test_the_later_of_two_files_with_one_name_stays(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two files with one name, written before and after the exchange, the table keeps the later one."""
    local.change("error", [1])
    table, real = Path(local.path), swap.exchange

    def interfere(one: Path, other: Path) -> None:
        (table / "x.parquet").write_bytes(parquet_bytes([8]))
        real(one, other)
        (table / "x.parquet").write_bytes(parquet_bytes([9]))

    monkeypatch.setattr(swap, "exchange", interfere)
    local.change("append", [2])

    assert local.ids() == [1, 2, 9]


def test_a_table_that_appears_during_the_last_step_is_merged(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a directory with files appears just before the final rename, the table gets the files of both."""
    table, real = Path(local.path), Path.rename

    def interfere(self: Path, target: Path) -> Path:
        if target == table and not table.exists():
            table.mkdir()
            (table / "x.parquet").write_bytes(parquet_bytes([8]))
        return real(self, target)

    monkeypatch.setattr(Path, "rename", interfere)
    local.change("append", [1])

    assert local.ids() == [1, 8]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL, errno.EXDEV, errno.EPERM, errno.EBUSY, errno.ENOTSUP])
@pytest.mark.parametrize("step", ["exchange", "link"])
def test_disks_that_cannot_exchange_directories_use_markers(
    local: Lake, monkeypatch: pytest.MonkeyPatch, number: int, step: str
) -> None:
    """If exchanging or linking is not supported, the change is made with markers and leaves no other files."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    local.change("error", [1], b"one")
    monkeypatch.setattr(*((swap, "exchange", refuse) if step == "exchange" else (os, "link", refuse)))
    local.change("append", [2, 3], b"two")
    appended = local.ids(), local.small()
    last = local.change("overwrite", [4], b"three")

    assert appended == ([1, 2, 3], b"two")
    assert (local.ids(), local.small()) == ([4], b"three")
    assert local.names() == ["_common_metadata", f"day=0/part-00000-{last.id}.parquet"]
    assert [each.name for each in Path(local.path).parent.iterdir()] == ["t"]


def test_a_mount_point_is_changed_in_place(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is a mount point, such as a container volume, is changed in place."""
    Path(local.path).mkdir(parents=True)
    monkeypatch.setattr(Path, "is_mount", lambda self: str(self) == local.path)

    change = local.change("append", [1])

    assert isinstance(change, in_place.InPlaceChange)
    assert local.ids() == [1]


def test_other_errors_are_raised(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk raises an error instead of a fallback to markers. The table stays as before."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    local.change("error", [1])
    change = local.begin("append")
    local.fill(change, [2])
    monkeypatch.setattr(os, "link", full)

    with pytest.raises(OSError, match="No space left on device"):
        change.finish({})
    change.abort()

    assert local.ids() == [1]
    assert [each.name for each in Path(local.path).parent.iterdir()] == ["t"]


def test_only_directories_of_dead_writers_are_removed(local: Lake) -> None:
    """A running writer keeps its directory while others write. A directory of a change without a lock is removed."""
    alive = local.begin("append")
    dead = Path(local.path).with_name(".t.penstock-0123456789ab")
    (dead / "table").mkdir(parents=True)
    unrelated = Path(local.path).with_name(".t.penstock-mine")
    unrelated.mkdir()

    local.change("error", [1])
    gone = not dead.exists()
    local.fill(alive, [2])
    alive.finish({})

    assert gone
    assert local.ids() == [1, 2]
    assert sorted(each.name for each in unrelated.parent.iterdir()) == [unrelated.name, "t"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": {}}', '{"inode": 1, "files": []}', "[" * 100_000])
def test_an_invalid_record_raises(local: Lake, text: str) -> None:
    """An invalid record of replaced files raises an error that names the record."""
    record = Path(local.path).with_name(".t.penstock-0123456789ab") / "replaced.json"
    record.parent.mkdir(parents=True)
    record.write_text(text)
    expected = (
        f"{record} cannot be read; expected the list of files that a table held before a change. Check whether "
        f"{record.parent} holds files that belong to the table, then remove that directory."
    )

    with pytest.raises(DataError) as caught:
        local.begin("append")

    assert str(caught.value) == expected


def test_files_that_cannot_be_removed_cause_a_warning(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A committed change warns if it cannot remove the files that it replaced. The next change removes them."""

    def refuse(*_: Any) -> None:
        raise OSError("busy")

    local.change("error", [1])
    with monkeypatch.context() as patch:
        patch.setattr(swap, "_remove_replaced", refuse)
        with pytest.warns(RuntimeWarning) as caught:
            local.change("overwrite", [2])
    between = local.ids()
    local.change("append", [3])

    assert str(caught[0].message) == (
        "The change of lake is committed, but the files that it replaced could not be removed: busy. Software other than "
        "Penstock may still read them. The next write to the table removes them."
    )
    assert (between, local.ids()) == ([2], [2, 3])


def test_a_committed_change_cannot_be_aborted(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborting after an interrupt right after the exchange removes the replaced files, not the new ones."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    local.change("error", [1])
    change = local.begin("append")
    local.fill(change, [2, 3])
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            change.finish({})
    change.abort()

    assert local.ids() == [1, 2, 3]
    assert [each.name for each in Path(local.path).parent.iterdir()] == ["t"]
