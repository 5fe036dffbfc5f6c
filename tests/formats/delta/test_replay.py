"""Replay of Delta logs: checkpoints and compacted commits give the same rows as the commits that they replace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_logs import Lake, column, inline, metadata, protocol
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ArgumentError, DataError

FILES, ROWS = 4, 3
FEATURES = ("v2Checkpoint", "deletionVectors")
Actions = list[dict[str, Any]]


def key(action: dict[str, Any]) -> tuple[str, str]:
    """Return the key by which the protocol distinguishes files: the path and the deletion vector."""
    content = next(action[kind] for kind in ("add", "remove") if kind in action)
    return content["path"], (content.get("deletionVector") or {}).get("pathOrInlineDv", "")


def removed(add: dict[str, Any]) -> dict[str, Any]:
    """Return the action that removes what an action added."""
    content = {"path": add["add"]["path"], "dataChange": True, "deletionTimestamp": 1}
    vector = add["add"].get("deletionVector")
    return {"remove": {**content, **({"deletionVector": vector} if vector else {})}}


def reconciled(actions: Sequence[dict[str, Any]], *, tombstones: bool) -> Actions:
    """Return the last action on each file, and the last action of each other kind."""
    last: dict[Any, dict[str, Any]] = {}
    for action in actions:
        (kind,) = action
        if kind in ("add", "remove"):
            name: Any = key(action)
        elif kind == "txn":
            name = (kind, action[kind]["appId"])
        else:
            name = (kind, action[kind].get("domain"))
        last.pop(name, None)
        last[name] = action
    return [action for action in last.values() if "commitInfo" not in action and (tombstones or "remove" not in action)]


class History:
    """Random commits of a table in a directory, and the rows of each version."""

    def __init__(self, path: Path, draw: Any) -> None:
        """Write the commits."""
        self.lake, self.commits = Lake(path), []
        adds = [self.lake.add(f"{at}.parquet", pa.table({"id": range(at * ROWS, at * ROWS + ROWS)})) for at in range(FILES)]
        alive: dict[int, dict[str, Any]] = {}
        for number in range(draw(st.integers(2, 7))):
            commit: Actions = [{"commitInfo": {"operation": "WRITE"}}]
            commit += [protocol(*FEATURES), metadata([column("id", "long")])] if number == 0 else []
            for file in draw(st.lists(st.integers(0, FILES - 1), unique=True, max_size=FILES)):
                commit += self._change(file, adds[file], alive, draw)
            commit += draw(st.lists(st.sampled_from(self._others(number)), max_size=2))
            self.commits.append(commit)
            self.lake.commit(number, *commit)

    @staticmethod
    def _change(file: int, add: dict[str, Any], alive: dict[int, dict[str, Any]], draw: Any) -> Actions:
        """Return the actions that add or remove a file, or change its deletion vector."""
        before = alive.pop(file, None)
        rows = draw(st.sampled_from([None, [0], [1], [0, 2]]))
        vector = {} if rows is None else {"deletionVector": inline(rows)}
        if before is not None and draw(st.booleans()):
            return [removed(before)]
        alive[file] = {"add": {**add["add"], **vector}}
        if before is None or key(before) == key(alive[file]):
            return [alive[file]]
        both: Actions = draw(st.permutations([removed(before), alive[file]]))
        return both

    @staticmethod
    def _others(number: int) -> Actions:
        """Return actions that change no row."""
        return [
            {"txn": {"appId": "app", "version": number}},
            {"domainMetadata": {"domain": "d", "configuration": str(number), "removed": False}},
            metadata([column("id", "long")], delta__appendOnly=str(number)),
            protocol(*FEATURES),
        ]

    def state(self, version: int) -> Actions:
        """Return the actions of a checkpoint at a version."""
        content = reconciled([action for commit in self.commits[: version + 1] for action in commit], tombstones=False)
        return [action for action in content if set(action) & {"add", "metaData", "protocol"}]

    def checkpoint(self, version: int, kind: str) -> None:
        """Write a checkpoint of some kind."""
        content, lake, name = self.state(version), self.lake, f"{version:020d}.checkpoint"
        few = [action for action in content if "add" not in action]
        adds = [action for action in content if "add" in action]
        sides = [{"sidecar": {"path": f"{version}-{at}.parquet", "sizeInBytes": 1, "modificationTime": 1}} for at in range(2)]
        if kind == "classic":
            lake.parquet(f"{name}.parquet", content)
        elif kind == "parts":
            lake.parquet(f"{name}.{1:010d}.{2:010d}.parquet", content[::2])
            lake.parquet(f"{name}.{2:010d}.{2:010d}.parquet", content[1::2])
        else:
            for at in range(2):
                lake.parquet(f"_sidecars/{version}-{at}.parquet", adds[at::2])
            if kind == "v2 json":
                lake.json(f"{name}.80a083e8-7026-4e79-81be-64bd76c43a11.json", [*few, *sides])
            else:
                lake.parquet(f"{name}.80a083e8-7026-4e79-81be-64bd76c43a11.parquet", [*few, *sides])

    def compact(self, first: int, last: int, kind: str) -> None:
        """Write one file that replaces several commits, reconciled or not."""
        content = [action for commit in self.commits[first : last + 1] for action in commit]
        if kind == "reconciled":
            content = reconciled(content, tombstones=True)
        elif kind == "removes first":
            content = sorted(content, key=lambda action: 0 if "remove" in action else 1)
        elif kind == "adds first":
            content = sorted(content, key=lambda action: 0 if "add" in action else 1)
        self.lake.json(f"{first:020d}.{last:020d}.compacted.json", content)

    def rows(self, version: int) -> list[int]:
        """Return the ids of a version, in order."""
        found: list[int] = ps.open(self.lake.path, version=version).to_arrow()["id"].to_pylist()
        return found


def ranges(draw: Any, count: int) -> tuple[int, int]:
    """Return two versions, the lower one first."""
    first = draw(st.integers(0, count - 1))
    return first, draw(st.integers(first, count - 1))


KINDS = ("classic", "parts", "v2 json", "v2 parquet")
COMPACTED = ("reconciled", "as committed", "removes first", "adds first")


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_checkpoints_and_compacted_commits_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Every version has the same rows in the same order with checkpoints and compacted commits as without."""
    history = History(tmp_path_factory.mktemp("lake") / "t", data.draw)
    count = len(history.commits)
    alone = [history.rows(version) for version in range(count)]
    for version, kind in data.draw(st.dictionaries(st.integers(0, count - 1), st.sampled_from(KINDS), max_size=2)).items():
        history.checkpoint(version, kind)
    for _ in range(data.draw(st.integers(0, 3))):
        history.compact(*ranges(data.draw, count), data.draw(st.sampled_from(COMPACTED)))

    assert [history.rows(version) for version in range(count)] == alone


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_compacted_commits_are_right_or_refused_without_their_commits(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Without their commits, reconciled compacted commits give the right rows; others give them or raise DataError."""
    history = History(tmp_path_factory.mktemp("lake") / "t", data.draw)
    count = len(history.commits)
    alone = [history.rows(version) for version in range(count)]
    first, last = ranges(data.draw, count)
    kind = data.draw(st.sampled_from(COMPACTED))
    history.compact(first, last, kind)
    for version in range(first, last + 1):
        (history.lake.log / f"{version:020d}.json").unlink()

    for version in [*range(first), *range(last, count)]:
        try:
            found: list[int] | str = history.rows(version)
        except DataError as error:
            found = str(error)
        if kind == "reconciled" or isinstance(found, list):
            assert found == alone[version]
        else:
            assert "compacted.json: the compacted commits are not reconciled" in found


def lake_of(path: Path, *commits: Sequence[dict[str, Any]]) -> Lake:
    """Write a table with these commits."""
    lake = Lake(path)
    for version, commit in enumerate(commits):
        lake.commit(version, *([protocol(*FEATURES), metadata([column("id", "long")])] if version == 0 else []), *commit)
    return lake


def ids(lake: Lake, **options: Any) -> list[int]:
    """Return the ids of all rows, sorted."""
    return sorted(ps.open(lake.path, **options).to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("backwards", [False, True])
def test_compacted_commits_that_add_and_remove_a_file_are_not_used(tmp_path: Path, *, backwards: bool) -> None:
    """Compacted commits that add and remove a file are not used; without their commits they raise DataError."""
    lake = lake_of(tmp_path / "t")
    adds = [lake.add(f"{at}.parquet", pa.table({"id": [at]})) for at in range(3)]
    lake.commit(0, protocol(), metadata([column("id", "long")]), adds[0])
    lake.commit(1, adds[1], adds[2])
    lake.commit(2, removed(adds[1]), removed(adds[0]))
    content = [adds[1], adds[2], removed(adds[1]), removed(adds[0])]
    lake.json(f"{1:020d}.{2:020d}.compacted.json", content[::-1] if backwards else content)

    assert ids(lake) == [2]

    (lake.log / f"{2:020d}.json").unlink()
    match = r"1\.0*2\.compacted\.json: .* both adds and removes '1\.parquet'.* commit 2 is missing.* Restore the commits 1 to 2"
    with pytest.raises(DataError, match=match):
        ps.open(lake.path)


def test_compacted_commits_that_add_a_file_with_two_vectors_are_not_used(tmp_path: Path) -> None:
    """Compacted commits that add a file with two deletion vectors are not used, because their order is lost."""
    lake = lake_of(tmp_path / "t")
    add = lake.add("0.parquet", pa.table({"id": [0, 1, 2]}))
    first, second = ({"add": {**add["add"], "deletionVector": inline(rows)}} for rows in ([0], [0, 1]))
    lake.commit(0, protocol(*FEATURES), metadata([column("id", "long")]), add)
    lake.commit(1, removed(add), first)
    lake.commit(2, second)
    lake.json(f"{1:020d}.{2:020d}.compacted.json", [removed(add), second, first])

    assert ids(lake) == [2]


def test_compacted_commits_with_two_schemas_are_not_used(tmp_path: Path) -> None:
    """Compacted commits with two metaData actions are not used; without their commits they raise DataError."""
    lake = lake_of(tmp_path / "t")
    old, new = metadata([column("id", "long")]), metadata([column("id", "long"), column("more", "string")])
    lake.commit(0, protocol(), old, lake.add("0.parquet", pa.table({"id": [0]})))
    lake.commit(1, new)
    lake.json(
        f"{0:020d}.{1:020d}.compacted.json", [new, *map(json.loads, (lake.log / f"{0:020d}.json").read_text().splitlines())]
    )

    assert ps.open(lake.path).schema.names == ("id", "more")

    (lake.log / f"{1:020d}.json").unlink()
    with pytest.raises(DataError, match=r"compacted\.json: .* has several metaData actions"):
        ps.open(lake.path)


def test_compacted_commits_with_repeated_actions_are_used(tmp_path: Path) -> None:
    """Compacted commits that repeat the same actions are used."""
    lake = lake_of(tmp_path / "t")
    add = lake.add("0.parquet", pa.table({"id": [0]}))
    content = [protocol(), metadata([column("id", "long")]), add]
    lake.json(f"{0:020d}.{1:020d}.compacted.json", [*content, *content])
    lake.commit(2, lake.add("1.parquet", pa.table({"id": [1]})))

    assert ids(lake) == [0, 1]
    assert ids(lake, version=1) == [0]


def test_compacted_commits_are_combined_in_any_way_that_reaches_the_version(tmp_path: Path) -> None:
    """Compacted files and commits are combined to reach the version, even if the longest first file leads to a gap."""
    lake = lake_of(tmp_path / "t")
    adds = [lake.add(f"{at}.parquet", pa.table({"id": [at]})) for at in range(7)]
    for version, add in enumerate(adds):
        lake.commit(version, *([protocol(), metadata([column("id", "long")])] if version == 0 else []), add)
    lake.json(f"{1:020d}.{4:020d}.compacted.json", adds[1:5])
    lake.json(f"{3:020d}.{6:020d}.compacted.json", adds[3:7])
    lake.json(f"{9:020d}.{5:020d}.compacted.json", [])  # invalid: it ends before it begins
    lake.json(f"{3:020d}.{2:020d}.compacted.json", [])
    for version in (3, 4, 5, 6):
        (lake.log / f"{version:020d}.json").unlink()

    assert ids(lake) == [*range(7)]
    assert ids(lake, version=4) == [*range(5)]
    with pytest.raises(DataError, match="commit 5 is missing"):
        ps.open(lake.path, version=5)
    assert ids(lake, version=2) == [0, 1, 2]


def test_the_newest_version_may_exist_in_compacted_commits_only(tmp_path: Path) -> None:
    """The newest version may exist in compacted commits only, and is not replaced by an older one."""
    lake = lake_of(tmp_path / "t")
    adds = [lake.add(f"{at}.parquet", pa.table({"id": [at]})) for at in range(3)]
    lake.commit(0, protocol(), metadata([column("id", "long")]), adds[0])
    lake.json(f"{1:020d}.{2:020d}.compacted.json", adds[1:])

    assert ids(lake) == [0, 1, 2]
    with pytest.raises(ArgumentError, match="has no version 3"):
        ps.open(lake.path, version=3)


@pytest.mark.parametrize("kind", ["parquet", "80a083e8-7026-4e79-81be-64bd76c43a11.json"])
def test_a_checkpoint_that_has_a_file_with_two_vectors_is_refused(tmp_path: Path, kind: str) -> None:
    """A checkpoint that has a file with two deletion vectors raises DataError, because either could apply."""
    lake = lake_of(tmp_path / "t")
    add = lake.add("0.parquet", pa.table({"id": [0, 1, 2]}))
    both = [add, {"add": {**add["add"], "deletionVector": inline([0])}}]
    name, content = f"{0:020d}.checkpoint.{kind}", [protocol(*FEATURES), metadata([column("id", "long")]), *both]
    if kind == "parquet":
        lake.parquet(name, content)
    else:
        lake.json(name, content)

    with pytest.raises(DataError, match=rf"{name}: the checkpoint has .*/0\.parquet with several deletion vectors"):
        ps.open(lake.path)


def test_an_empty_commit_is_refused_and_an_empty_compaction_is_not_used(tmp_path: Path) -> None:
    """An empty commit raises DataError, and an empty compacted file is not used, because both are unfinished."""
    lake = lake_of(tmp_path / "t")
    adds = [lake.add(f"{at}.parquet", pa.table({"id": [at]})) for at in range(3)]
    lake.commit(0, protocol(), metadata([column("id", "long")]), adds[0])
    lake.commit(1, adds[1])
    lake.commit(2, removed(adds[0]), adds[2])
    compacted = lake.log / f"{1:020}.{2:020}.compacted.json"
    compacted.write_bytes(b"")
    assert sorted(ps.open(lake.path).to_arrow()["id"].to_pylist()) == [1, 2]

    compacted.unlink()
    (lake.log / f"{2:020}.json").write_bytes(b"\n")

    with pytest.raises(DataError, match=rf"{2:020}\.json.*it is empty, and a commit has at least one action"):
        ps.open(lake.path)
    assert sorted(ps.open(lake.path, version=1).to_arrow()["id"].to_pylist()) == [0, 1]
