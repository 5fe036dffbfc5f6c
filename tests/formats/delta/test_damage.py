"""Damaged Delta logs give rows or a PenstockError, whatever bytes their files contain."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_logs import Lake, column, inline, metadata, protocol
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import PenstockError

FIELDS = [column("id", "long"), column("name", "string"), column("day", "date")]
VECTORS = "d2c639aa-8816-431a-aaf6-d3fe2512ff61"
EXPECTED = [0, 3, 5, 8, 9, 10, 11, 12]
CHECKPOINTS = ("classic", "v2 json", "v2 parquet")


def written(path: Path, checkpoint: str) -> Lake:
    """Write a table with a checkpoint, compacted commits, deletion vectors in a file and in the log, and partitions."""
    lake = Lake(path)
    adds = []
    for at in range(6):
        rows = pa.table({"id": [2 * at, 2 * at + 1], "name": ["a", None]})
        stats = {"numRecords": 2, "minValues": {"id": 2 * at}, "maxValues": {"id": 2 * at + 1}, "nullCount": {"id": 0}}
        adds.append(lake.add(f"{at}.parquet", rows, partition={"day": f"2024-01-0{at + 1}"}, stats=stats)["add"])
    first, second = lake.vectors(VECTORS, [1], [0])
    hidden = [{**adds[0], "deletionVector": first}, {**adds[2], "deletionVector": second}]
    removes = [{"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}} for add in adds]
    start = [protocol("v2Checkpoint", "deletionVectors"), metadata(FIELDS, ["day"])]
    commits: list[list[dict[str, Any]]] = [
        [*start, {"add": adds[0]}, {"add": adds[1]}],
        [{"add": adds[2]}, {"add": adds[3]}],
        [removes[0], {"add": hidden[0]}, removes[2], {"add": hidden[1]}],
        [{"add": adds[4]}, removes[3]],
        [{"add": adds[5]}],
        [removes[1], {"add": {**adds[1], "deletionVector": inline([0])}}],
    ]
    last = lake.add("6.parquet", pa.table({"id": [12]}), partition={"day": None})
    commits.append([{"commitInfo": {"operation": "DELETE"}}, last])
    for version, commit in enumerate(commits):
        lake.commit(version, {"commitInfo": {"operation": "DELETE"}}, *commit)
    alive = [{"add": hidden[0]}, {"add": adds[1]}, {"add": hidden[1]}, {"add": adds[3]}]
    name = f"{2:020d}.checkpoint"
    if checkpoint == "classic":
        lake.parquet(f"{name}.parquet", [*start, *alive])
    else:
        for at in range(2):
            lake.parquet(f"_sidecars/{at}.parquet", alive[at::2])
        sides = [{"sidecar": {"path": f"{at}.parquet", "sizeInBytes": 1, "modificationTime": 1}} for at in range(2)]
        named = f"{name}.80a083e8-7026-4e79-81be-64bd76c43a11"
        if checkpoint == "v2 json":
            lake.json(f"{named}.json", [*start, *sides])
        else:
            lake.parquet(f"{named}.parquet", [*start, *sides])
    lake.json(f"{3:020d}.{4:020d}.compacted.json", [*commits[3], *commits[4]])
    (lake.log / "_last_checkpoint").write_text('{"version":2,"size":6}')
    for version in (0, 1):
        (lake.log / f"{version:020d}.json").unlink()
    return lake


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lake]:
    """Return a table for each kind of checkpoint."""
    return {kind: written(tmp_path_factory.mktemp("lakes") / "t", kind) for kind in CHECKPOINTS}


def queries(path: Path) -> list[Callable[[], object]]:
    """Return calls that read everything a log contains."""
    return [
        lambda: ps.open(path).to_arrow(),
        lambda: ps.open(path).where(ps.col("id") > 3, ps.col("day").is_not_null()).to_arrow(),
        lambda: ps.changes(path, 3).to_arrow(),
        lambda: ps.open(path, timestamp=dt.datetime.now(dt.UTC)).num_rows,
    ]


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_the_undamaged_tables_are_read(lakes: dict[str, Lake], kind: str) -> None:
    """The undamaged tables can be read, so that later errors are due to the damage."""
    assert sorted(ps.open(lakes[kind].path).to_arrow()["id"].to_pylist()) == EXPECTED


def damaged(data: bytes, draw: Any) -> bytes:
    """Return bytes with random replacements, deletions and insertions."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(found)))
        way = draw(st.sampled_from(["flip", "set", "cut", "insert", "end"]))
        if way == "flip" and at < len(found):
            found[at] ^= 1 << draw(st.integers(0, 7))
        elif way == "set":
            found[at : at + 2] = draw(st.binary(min_size=1, max_size=2))
        elif way == "cut":
            del found[at : at + draw(st.integers(1, 9))]
        elif way == "insert":
            found[at:at] = draw(
                st.sampled_from([b"\xff", b"\0", b"{", b"}", b"\n", b'"', b"[", b"null", b"\\ud800", b"9" * 20])
            )
        else:
            del found[at:]
    return bytes(found)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=120)
@given(st.data())
def test_a_damaged_log_gives_rows_or_a_penstock_error(
    lakes: dict[str, Lake], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Random damage in any file of a log, or of deletion vectors, gives rows or a PenstockError."""
    lake = lakes[data.draw(st.sampled_from(CHECKPOINTS))]
    path = tmp_path_factory.mktemp("damaged") / "t"
    shutil.copytree(lake.path, path)
    files = sorted(file for file in path.rglob("*") if file.is_file() and (file.suffix == ".bin" or "_delta_log" in file.parts))
    file = data.draw(st.sampled_from(files))
    file.write_bytes(damaged(file.read_bytes(), data.draw))

    check(path)
    shutil.rmtree(path)


ODD = [
    None,
    True,
    0,
    -1,
    1.5,
    2**70,
    "",
    "x",
    "\ud800",
    "\0",
    "9" * 30,
    [],
    [1],
    {},
    {"a": 1},
    float("nan"),
    "{",
    "-0001-01-01",
]
KEYS = ["path", "add", "remove", "nullable", "type", "metadata", "dataChange", "stats", "x"]


def changed(value: Any, draw: Any) -> Any:
    """Return JSON in which one value, at any depth, is replaced or removed, or gets another key."""
    way = draw(st.sampled_from(["inside", "inside", "inside", "odd", "gone", "key"]))
    if isinstance(value, str) and value[:1] == "{" and way == "inside":
        return json.dumps(changed(json.loads(value), draw))
    if not isinstance(value, dict | list) or not value or way == "odd":
        return draw(st.sampled_from(ODD))
    key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    if way == "gone":
        del value[key]
    elif way == "key" and isinstance(value, dict):
        value[draw(st.sampled_from(KEYS))] = value.pop(key)
    else:
        value[key] = changed(value[key], draw)
    return value


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=120)
@given(st.data())
def test_a_log_of_odd_values_gives_rows_or_a_penstock_error(
    lakes: dict[str, Lake], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Valid JSON with values of wrong types, missing values or unexpected keys gives rows or a PenstockError."""
    lake = lakes[data.draw(st.sampled_from(CHECKPOINTS))]
    path = tmp_path_factory.mktemp("odd") / "t"
    shutil.copytree(lake.path, path)
    file = data.draw(st.sampled_from(sorted(path.rglob("*.json"))))
    lines = file.read_text().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = json.dumps(changed(json.loads(lines[at]), data.draw))
    file.write_text("\n".join(lines))

    check(path)
    shutil.rmtree(path)


def check(path: Path) -> None:
    """Read everything a log contains, and allow no error but PenstockError."""
    for ask in queries(path):
        with suppress(PenstockError):
            ask()
