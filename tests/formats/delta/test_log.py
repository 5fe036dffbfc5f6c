"""The files of each version of a Delta log, from commits, checkpoints of all kinds and timestamps."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_logs import Lake, column, metadata, protocol
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ArgumentError, DataError, TableNotFoundError
from penstock.formats.delta import DeltaFormat, sources

SCHEMA = [column("id", "long")]
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def ids(ds: ps.Dataset) -> list[int]:
    """Return the ids of all rows, sorted."""
    return sorted(ds.to_arrow()["id"].to_pylist())


def remove(add: dict[str, Any]) -> dict[str, Any]:
    """Return the action that removes what an action added."""
    return {"remove": {"path": add["add"]["path"], "dataChange": True, "deletionTimestamp": 1}}


def history(lake: Lake, *, features: tuple[str, ...] = ()) -> list[list[int]]:
    """Write six commits that add and remove files, and return the ids of each version."""
    adds = [lake.add(f"{at}.parquet", pa.table({"id": [at]}), modificationTime=at) for at in range(6)]
    lake.commit(0, protocol(*features), metadata(SCHEMA), adds[0])
    lake.commit(1, adds[1])
    lake.commit(2, remove(adds[0]), adds[2])
    lake.commit(3, {"commitInfo": {"operation": "nothing"}})
    lake.commit(4, adds[3], adds[4], remove(adds[1]))
    lake.commit(5, adds[5], adds[0])
    return [[0], [0, 1], [1, 2], [1, 2], [2, 3, 4], [0, 2, 3, 4, 5]]


def state(lake: Lake, version: int, *, features: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return the actions of a checkpoint at a version, derived from the commits."""
    alive: dict[str, dict[str, Any]] = {}
    for number in range(version + 1):
        for line in (lake.log / f"{number:020d}.json").read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                alive[action["add"]["path"]] = action
            if "remove" in action:
                alive.pop(action["remove"]["path"])
    return [protocol(*features), metadata(SCHEMA), *alive.values()]


def forget(lake: Lake, *versions: int) -> None:
    """Remove commits, as log cleanup does."""
    for version in versions:
        (lake.log / f"{version:020d}.json").unlink()


def classic(lake: Lake) -> None:
    """Write a checkpoint of one file."""
    lake.parquet(f"{3:020d}.checkpoint.parquet", state(lake, 3))


def in_parts(lake: Lake) -> None:
    """Write a checkpoint in three parts, and a newer one that lacks a part."""
    for number, action in enumerate(zip(state(lake, 3)[:2], state(lake, 3)[2:], strict=True), 1):
        lake.parquet(f"{3:020d}.checkpoint.{number:010d}.{3:010d}.parquet", action)
    lake.parquet(f"{3:020d}.checkpoint.{3:010d}.{3:010d}.parquet", [])
    lake.parquet(f"{4:020d}.checkpoint.{1:010d}.{2:010d}.parquet", state(lake, 4)[:2])


def named_json(lake: Lake) -> None:
    """Write a V2 checkpoint as JSON, with its files in sidecars."""
    _sidecars(lake)
    content = [{"checkpointMetadata": {"version": 3}}, *state(lake, 3, features=("v2Checkpoint",))[:2], *_sidecar_actions(lake)]
    lake.json(f"{3:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json", content)


def named_parquet(lake: Lake) -> None:
    """Write a V2 checkpoint as Parquet, with its files in sidecars."""
    _sidecars(lake)
    content = [*state(lake, 3, features=("v2Checkpoint",))[:2], *_sidecar_actions(lake)]
    lake.parquet(f"{3:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet", content)


def named_alone(lake: Lake) -> None:
    """Write a V2 checkpoint as JSON, with its files in itself."""
    lake.json(f"{3:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json", state(lake, 3, features=("v2Checkpoint",)))


def classic_with_sidecars(lake: Lake) -> None:
    """Write a V2 checkpoint under the file name of a classic one."""
    _sidecars(lake)
    lake.parquet(f"{3:020d}.checkpoint.parquet", [*state(lake, 3, features=("v2Checkpoint",))[:2], *_sidecar_actions(lake)])


def _sidecars(lake: Lake) -> None:
    for number, action in enumerate(state(lake, 3)[2:]):
        lake.parquet(f"_sidecars/side%{number}.parquet", [action])


def _sidecar_actions(lake: Lake) -> list[dict[str, Any]]:
    files = sorted((lake.log / "_sidecars").iterdir())
    return [
        {"sidecar": {"path": f"side%25{at}.parquet", "sizeInBytes": 1, "modificationTime": 1}} for at, _ in enumerate(files)
    ]


@pytest.mark.parametrize("write", [classic, in_parts, named_json, named_parquet, named_alone, classic_with_sidecars])
def test_a_checkpoint_of_any_kind_replaces_the_commits_before_it(tmp_path: Path, write: Callable[[Lake], None]) -> None:
    """Every version has the same rows in the same order with and without a checkpoint, also if the commits are gone."""
    lake = Lake(tmp_path / "t")
    versions = history(lake, features=("v2Checkpoint",))
    before = [ps.open(lake.path, version=at) for at in range(6)]
    rows = [ds.to_arrow()["id"].to_pylist() for ds in before]
    write(lake)
    after = [ps.open(lake.path, version=at) for at in range(6)]

    assert [sorted(found) for found in rows] == versions
    assert [ds.to_arrow()["id"].to_pylist() for ds in after] == rows
    plans = [[ds.shuffle(seed=1)._table.plan(ds._query).plan.fingerprint for ds in many] for many in (before, after)]
    assert plans[0] == plans[1]
    forget(lake, 0, 1, 2, 3)
    assert [ids(ps.open(lake.path, version=at)) for at in (3, 4, 5)] == versions[3:]
    with pytest.raises(
        ArgumentError, match=r"has no version 2 any more: its log was cleaned up, .* The oldest available version is 3"
    ):
        ps.open(lake.path, version=2)


def test_a_compacted_log_is_read_instead_of_its_commits(tmp_path: Path) -> None:
    """A compacted file replaces missing commits, unless it reaches beyond the version."""
    lake = Lake(tmp_path / "t")
    versions = history(lake)
    content = {at: (lake.log / f"{at:020d}.json").read_text() for at in range(6)}
    adds = [json.loads(line) for at in range(1, 5) for line in content[at].splitlines()]
    lake.json(f"{1:020d}.{4:020d}.compacted.json", [*adds[2:], adds[0]])
    lake.json(
        f"{1:020d}.{2:020d}.compacted.json", [json.loads(line) for line in "".join([content[1], content[2]]).splitlines()]
    )
    forget(lake, 1, 2)

    assert ids(ps.open(lake.path, version=2)) == versions[2]
    assert ids(ps.open(lake.path, version=3)) == versions[3]
    with pytest.raises(DataError, match="commit 1 is missing in the table's log"):
        ps.open(lake.path, version=1)


@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=4), min_size=1, max_size=8), st.integers(0, 7))
def test_any_history_replays_to_the_last_action_on_each_file(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[tuple[bool, int]]], requested: int
) -> None:
    """In any history, a version has the files whose last action is an add, and delta-rs agrees."""
    lake = Lake(tmp_path_factory.mktemp("lake") / "t")
    adds = [lake.add(f"{at}.parquet", pa.table({"id": [at]})) for at in range(6)]
    version = min(requested, len(commits) - 1)
    alive: set[int] = set()
    for number, commit in enumerate(commits):
        once = {file: added for added, file in commit}
        actions = [adds[file] if added else remove(adds[file]) for file, added in once.items()]
        lake.commit(number, *([protocol(), metadata(SCHEMA)] if number == 0 else []), {"commitInfo": {}}, *actions)
        if number <= version:
            alive = {*alive, *(file for file, added in once.items() if added)} - {
                file for file, added in once.items() if not added
            }

    assert ids(ps.open(lake.path, version=version)) == sorted(alive)
    assert sorted(pa.table(DeltaTable(lake.path, version=version).scan())["id"].to_pylist()) == sorted(alive)


def test_the_newest_version_is_the_default(tmp_path: Path) -> None:
    """The newest version is the default; another one is given as a number or text, and an invalid one raises."""
    lake = Lake(tmp_path / "t")
    versions = history(lake)

    assert ids(ps.open(lake.path)) == versions[5]
    assert ids(ps.open(lake.path, version="4")) == versions[4]
    assert (
        repr(ps.open(lake.path)) == f"penstock.open({str(lake.path)!r}, version='5')  # {len(versions[5])} rows, 1 column: id"
    )
    for version in (6, -1):
        with pytest.raises(ArgumentError, match=rf"has no version {version}\. Its newest is 5\. Give a version from 0 to 5"):
            ps.open(lake.path, version=version)
    for odd in ("new", True, 1.0):
        with pytest.raises(ArgumentError, match="the versions of a Delta table are whole numbers"):
            ps.open(lake.path, version=odd)  # type: ignore[arg-type]


def times(lake: Lake, *hours: float) -> None:
    """Set the hours at which the commits of a log were written."""
    for version, hour in enumerate(hours):
        moment = (START + dt.timedelta(hours=hour)).timestamp()
        os.utime(lake.log / f"{version:020d}.json", (moment, moment))


def version_at(lake: Lake, hour: float) -> str:
    """Return the version at an hour."""
    return ps.open(lake.path, timestamp=START + dt.timedelta(hours=hour))._table.snapshot.version


def test_a_timestamp_selects_the_newest_version_at_that_time(tmp_path: Path) -> None:
    """A timestamp selects by commit times; a commit that seems older than the one before it counts as slightly newer."""
    lake = Lake(tmp_path / "t")
    history(lake)
    times(lake, 0, 1, 2, 1.5, 4, 5)

    assert [version_at(lake, hour) for hour in (0, 0.9, 1, 2, 2.001, 3.9, 4, 100)] == ["0", "0", "1", "2", "3", "3", "4", "5"]
    assert ids(ps.open(lake.path, timestamp="2026-01-01T01:30:00Z")) == [0, 1]
    assert ids(ps.open(lake.path, timestamp="2026-01-01T02:30:00+01:00")) == [0, 1]
    with pytest.raises(ArgumentError, match=r"has no version as of 2025-12-31T23:00:00\+00:00\. The oldest .* is version 0"):
        version_at(lake, -1)


def test_timestamps_select_the_same_versions_as_delta_rs(tmp_path: Path) -> None:
    """A timestamp selects the same version as in delta-rs."""
    lake = Lake(tmp_path / "t")
    history(lake)
    hours = [0, 1, 2, 3, 4, 5]
    times(lake, *hours)
    random.seed(3)
    for hour in [*hours, *(random.uniform(0, 9) for _ in range(20))]:  # noqa: S311 - not for security
        table = DeltaTable(lake.path)
        table.load_as_version(START + dt.timedelta(hours=hour))
        assert str(table.version()) == version_at(lake, hour)


def test_in_commit_timestamps_apply_from_the_version_that_enables_them(tmp_path: Path) -> None:
    """In-commit timestamps apply from the version that enables them, and file times before it; a missing one raises."""
    lake = Lake(tmp_path / "t")
    history(lake)
    times(lake, 0, 1, 2, 50, 50, 50)
    since = int((START + dt.timedelta(hours=10)).timestamp() * 1000)
    options = {
        "delta__enableInCommitTimestamps": "true",
        "delta__inCommitTimestampEnablementVersion": "3",
        "delta__inCommitTimestampEnablementTimestamp": str(since),
    }
    for version in (3, 4, 5):
        file = lake.log / f"{version:020d}.json"
        rest = [json.loads(line) for line in file.read_text().splitlines()]
        content = [{"commitInfo": {"inCommitTimestamp": since + (version - 3) * 3_600_000}}]
        lake.commit(version, *content, *([metadata(SCHEMA, **options)] if version == 3 else []), *rest)

    assert [version_at(lake, hour) for hour in (0, 1.5, 9, 10, 10.9, 11, 12, 99)] == ["0", "1", "2", "3", "3", "4", "5", "5"]
    lake.commit(5, {"commitInfo": {}})
    with pytest.raises(DataError, match=r"5\.json: the commit has no time"):
        version_at(lake, 12)


def test_in_commit_timestamps_without_a_start_apply_to_all_versions(tmp_path: Path) -> None:
    """Without a recorded start, in-commit timestamps apply from the first version on."""
    lake = Lake(tmp_path / "t")
    add = lake.add("0.parquet", pa.table({"id": [0]}))
    content = {"commitInfo": {"inCommitTimestamp": int(START.timestamp() * 1000)}}
    lake.commit(0, content, protocol(), metadata(SCHEMA, delta__enableInCommitTimestamps="true"), add)

    assert version_at(lake, 1) == "0"
    with pytest.raises(ArgumentError, match="has no version as of"):
        version_at(lake, -1)


def test_an_invalid_timestamp_raises(tmp_path: Path) -> None:
    """A timestamp without a zone, in the future, together with a version, or of plain Parquet raises ArgumentError."""
    lake = Lake(tmp_path / "t")
    history(lake)
    for odd in ("2026-01-01T00:00:00", "yesterday", dt.datetime(2026, 1, 1), 7):  # noqa: DTZ001 - naive times are tested
        with pytest.raises(ArgumentError, match=r"expected a time with a zone.*timestamp='2026-01-01T00:00:00Z'"):
            ps.open(lake.path, timestamp=odd)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="which is still to come"):
        ps.open(lake.path, timestamp="9000-01-01T00:00:00Z")
    with pytest.raises(
        ArgumentError, match="open got version=1 and timestamp='2026-01-01T00:00:00Z', which both name a version"
    ):
        ps.open(lake.path, version=1, timestamp="2026-01-01T00:00:00Z")
    with pytest.raises(ArgumentError, match="tables of the format parquet do not tell when their versions came"):
        ps.open(lake.path / "0.parquet", timestamp="2026-01-01T00:00:00Z")


def test_a_log_with_a_missing_commit_is_refused(tmp_path: Path) -> None:
    """A missing commit raises DataError for later versions, and earlier versions can be read."""
    lake = Lake(tmp_path / "t")
    versions = history(lake)
    forget(lake, 3)

    assert ids(ps.open(lake.path, version=2)) == versions[2]
    with pytest.raises(DataError, match="commit 3 is missing in the table's log, which has later ones"):
        ps.open(lake.path)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (
            lambda lake: (lake.log / f"{1:020d}.json").write_text('{"add":'),
            r"1\.json: this file of the table's log cannot be read",
        ),
        (lambda lake: (lake.log / f"{1:020d}.json").write_text("[]\n"), "a line is not a JSON object"),
        (lambda lake: lake.commit(1, {"add": {"size": 3}}), "an action of the table's log names no file"),
        (lambda lake: lake.commit(1, {"add": {"path": 3}}), "an action cannot be read: 'path' is 3, and not string"),
        (lambda lake: lake.commit(0, protocol()), "the table's log has no metaData action up to version 5"),
        (lambda lake: lake.commit(0, metadata(SCHEMA)), "the table's log has no protocol action up to version 5"),
        (lambda lake: (lake.log / f"{3:020d}.checkpoint.parquet").write_bytes(b"PAR1"), r"checkpoint\.parquet: this file of"),
        (lambda lake: forget(lake, *range(6)), "has a Delta log without commits"),
    ],
)
def test_a_broken_log_is_refused(tmp_path: Path, spoil: Callable[[Lake], None], complaint: str) -> None:
    """A broken log raises DataError with the reason, instead of giving some of the rows."""
    lake = Lake(tmp_path / "t")
    history(lake)
    spoil(lake)

    with pytest.raises(DataError, match=complaint):
        ps.open(lake.path)


def test_other_files_in_a_log_are_ignored(tmp_path: Path) -> None:
    """Checksums, temporary files, staged commits and a broken _last_checkpoint in a log are ignored."""
    lake = Lake(tmp_path / "t")
    versions = history(lake)
    for name in (
        f".{5:020d}.json.crc",
        f"{5:020d}.crc",
        f"{6:020d}.json.tmp",
        "_last_checkpoint",
        f"{9:020d}.checkpoint.parquet.tmp",
    ):
        (lake.log / name).write_bytes(b"\0{")
    (lake.log / "_staged_commits").mkdir()
    (lake.log / "_staged_commits" / f"{6:020d}.80a083e8-7026-4e79-81be-64bd76c43a11.json").write_text("{")

    assert ids(ps.open(lake.path)) == versions[5]


def test_a_log_that_is_cleaned_up_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is read again if a listed commit is gone, and raises DataError if the commit stays gone."""
    lake = Lake(tmp_path / "t")
    versions = history(lake)
    read, calls = sources.read_texts, []

    def cleaned(*given: Any) -> list[bytes]:
        calls.append(given)
        if len(calls) == 1:
            classic(lake)
            forget(lake, 0, 1, 2, 3)
        return read(*given)

    monkeypatch.setattr("penstock.formats.delta.replay.read_texts", cleaned)

    assert ids(ps.open(lake.path)) == versions[5]

    def gone(*_: Any) -> list[bytes]:
        raise sources.LogChangedError("5.json")

    monkeypatch.setattr("penstock.formats.delta.replay.read_texts", gone)
    with pytest.raises(DataError, match=r"5\.json: the file was listed in the table's log and is gone"):
        ps.open(lake.path)


def test_a_directory_without_a_log_is_not_a_delta_table(tmp_path: Path) -> None:
    """A directory without a log is read as plain Parquet, and raises TableNotFoundError if the Delta format is given."""
    write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    for file in (tmp_path / "t" / "_delta_log").iterdir():
        file.unlink()
    (tmp_path / "t" / "_delta_log").rmdir()

    assert ids(ps.open(tmp_path / "t")) == [1]
    with pytest.raises(TableNotFoundError, match="is no Delta table: it has no _delta_log that can be listed"):
        ps.open(tmp_path / "t", format=DeltaFormat())


def test_absolute_and_relative_paths_name_the_same_file(tmp_path: Path) -> None:
    """A remove with an absolute path, with or without a scheme, applies to a file that was added by a relative path."""
    lake = Lake(tmp_path / "t")
    adds = [lake.add(f"a b{at}.parquet", pa.table({"id": [at]})) for at in range(3)]
    lake.commit(0, protocol(), metadata(SCHEMA), *adds)
    lake.commit(
        1, {"remove": {"path": f"file:{lake.path}/a%20b0.parquet"}}, {"remove": {"path": f"{lake.path}/a%20b1.parquet"}}
    )

    assert ids(ps.open(lake.path)) == [2]


def test_a_line_that_is_not_an_action_raises(tmp_path: Path) -> None:
    """A commit with the line null raises DataError, although Arrow's JSON reader crashes on it."""
    lake = Lake(tmp_path / "t")
    lake.commit(0, protocol(), metadata(SCHEMA), lake.add("0.parquet", pa.table({"id": [1]})))
    commit = lake.log / f"{0:020d}.json"
    commit.write_text("null\n" + commit.read_text())

    with pytest.raises(DataError, match=r"0\.json: .*null"):
        ps.open(lake.path)


LAYOUTS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "indented": lambda actions: "\n".join(json.dumps(action, indent=2) for action in actions),
    "indented, of Windows": lambda actions: "\r\n".join(json.dumps(one, indent=1).replace("\n", "\r\n") for one in actions),
    "in one line": lambda actions: "".join(json.dumps(action) for action in actions),
    "in one line, with spaces": lambda actions: " \t ".join(json.dumps(action) for action in actions),
    "with empty lines": lambda actions: "\n\n \n" + "\n\n".join(json.dumps(action) for action in actions) + "\n\n",
    "broken after colons": lambda actions: "\n".join(json.dumps(one, separators=(",\n", ":\n")) for one in actions),
    "with a byte order mark": lambda actions: "\ufeff" + "\n".join(json.dumps(action) for action in actions),
    "not escaped": lambda actions: "\n".join(json.dumps(one, indent=2, ensure_ascii=False) for one in actions),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_actions_may_be_laid_out_in_any_way_that_json_allows(tmp_path: Path, layout: str) -> None:
    """Actions may span several lines or share one, in commits, compacted files and checkpoints."""
    lake = Lake(tmp_path / "t")
    options = {"delta.note": "a } {\u2028b\u0085c", "delta.enableInCommitTimestamps": "true"}
    content = metadata(SCHEMA)
    content["metaData"]["configuration"] = options
    adds = [lake.add(f"{at}.parquet", pa.table({"id": [at]})) for at in range(5)]
    moment = int(START.timestamp() * 1000)
    info = [{"commitInfo": {"operation": "WRITE", "inCommitTimestamp": moment + at}} for at in range(5)]
    actions = {
        f"{0:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json": [protocol("v2Checkpoint"), content, adds[0]],
        f"{1:020d}.{2:020d}.compacted.json": [adds[1], adds[2]],
        f"{0:020d}.json": [info[0], protocol("v2Checkpoint"), content, adds[0]],
        f"{1:020d}.json": [info[1], adds[1]],
        f"{2:020d}.json": [info[2], adds[2]],
        f"{3:020d}.json": [info[3], adds[3]],
        f"{4:020d}.json": [info[4], remove(adds[0])],
    }
    for name, some in actions.items():
        (lake.log / name).write_bytes(LAYOUTS[layout](some).encode())

    assert ids(ps.open(lake.path)) == [1, 2, 3]
    assert ids(ps.changes(lake.path, 0)) == [1, 2, 3]
    assert version_at(lake, 1) == "4"
    ps.write(lake.path, data={"id": [9]}, format="delta", mode="append")
    assert ids(ps.open(lake.path)) == [1, 2, 3, 9]


@pytest.mark.parametrize("name", [f"{1:020d}.json", f"{1:020d}.{2:020d}.compacted.json", f"{0:020d}.checkpoint.a.json"])
@pytest.mark.parametrize("where", ["path", "key", "schema"])
def test_text_of_a_log_that_is_not_utf_8_is_refused(tmp_path: Path, name: str, where: str) -> None:
    """Text of a log that is not UTF-8 raises DataError, which names the file and the byte."""
    lake = Lake(tmp_path / "t")
    adds = [lake.add(f"{at}.parquet", pa.table({"id": [at]})) for at in range(3)]
    lake.commit(0, protocol("v2Checkpoint"), metadata(SCHEMA), adds[0])
    lake.commit(1, adds[1])
    lake.commit(2, adds[2])
    text = "".join(json.dumps(one) + "\n" for one in [protocol("v2Checkpoint"), metadata(SCHEMA), adds[1]]).encode()
    before, after = {"path": (b"1.par", b"\xff.par"), "key": (b'"size"', b'"si\xffe"'), "schema": (b"by-hand", b"by-\xc3")}[
        where
    ]
    assert before in text
    (lake.log / name).write_bytes(text.replace(before, after))

    with pytest.raises(DataError, match=rf"{name}: this file of the table's log cannot be read: it is not UTF-8 at byte \d+"):
        ps.open(lake.path)


@pytest.mark.parametrize("spoilt", ["path", "stats", "schemaString", "partitionValues", "readerFeatures", "sidecar"])
def test_text_of_a_checkpoint_that_is_not_utf_8_is_refused(tmp_path: Path, spoilt: str) -> None:
    """Text in a Parquet checkpoint that is not UTF-8 raises DataError, which names the file."""
    lake = Lake(tmp_path / "t")
    add = lake.add("marked.parquet", pa.table({"id": [1]}), stats={"numRecords": 1, "marked": 1}, partition={"p": "marked"})
    content = metadata([*SCHEMA, column("p", "string"), column("marked", "string")], ["p"])
    features = ("v2Checkpoint", "marked") if spoilt == "readerFeatures" else ("v2Checkpoint",)
    side = {"sidecar": {"path": "marked.parquet", "sizeInBytes": 1, "modificationTime": 1}}
    actions = {
        "path": [protocol(*features), metadata(SCHEMA), {"add": {**add["add"], "stats": None, "partitionValues": {}}}],
        "stats": [protocol(*features), metadata(SCHEMA), {"add": {**add["add"], "path": "x", "partitionValues": {}}}],
        "partitionValues": [protocol(*features), content, {"add": {**add["add"], "path": "x", "stats": None}}],
        "schemaString": [protocol(*features), content],
        "readerFeatures": [protocol(*features), metadata(SCHEMA)],
        "sidecar": [protocol(*features), metadata(SCHEMA), side],
    }[spoilt]
    lake.parquet(f"{0:020d}.checkpoint.parquet", actions)
    file = lake.log / f"{0:020d}.checkpoint.parquet"
    pq.write_table(pq.read_table(file), file, compression="none", use_dictionary=False, write_statistics=False)
    assert b"marked" in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(b"marked", b"mark\xff\xff"))

    with pytest.raises(DataError, match=r"checkpoint\.parquet: this file of the table's log cannot be read: .*UTF-?8"):
        ps.open(lake.path)


def test_an_action_that_is_not_an_object_is_refused(tmp_path: Path) -> None:
    """An action that is not a JSON object, or that both adds and removes a file, raises DataError."""
    lake = Lake(tmp_path / "t")
    add = lake.add("0.parquet", pa.table({"id": [1]}))
    lake.commit(0, protocol(), metadata(SCHEMA), add)
    lake.commit(1, {"metaData": [1]})
    with pytest.raises(DataError, match=r"1\.json: .* metaData is \[1\], and not a JSON object"):
        ps.open(lake.path)

    lake.commit(1, {**add, **remove(add)})
    with pytest.raises(DataError, match="one object both adds and removes a file"):
        ps.open(lake.path)


def test_a_version_after_compacted_commits_has_a_time(tmp_path: Path) -> None:
    """A version has the time of its own commit, even if earlier commits exist only in a compacted file."""
    lake = Lake(tmp_path / "t")
    versions = history(lake)
    times(lake, 0, 1, 2, 3, 4, 5)
    lake.json(
        f"{1:020d}.{2:020d}.compacted.json",
        [json.loads(line) for line in (lake.log / f"{2:020d}.json").read_text().splitlines()],
    )
    forget(lake, 1, 2)

    assert version_at(lake, 3.5) == "3"
    assert version_at(lake, 2.5) == "0"
    assert len(versions) == 6
