"""Writing Delta tables: other readers, atomic commits and concurrent writers."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs as pafs

import penstock as ps
from penstock._engine.storage.filesystem import destination
from penstock.codecs import Npy, Png, Scalar, Tensor
from penstock.errors import ArgumentError, DataChangedError, DataError, WriteError
from penstock.formats.delta import DeltaFormat
from penstock.formats.delta.encode_actions import delta_type, suited

deltalake = pytest.importorskip("deltalake")

DELTA = DeltaFormat()
SCHEMA = ps.Schema(
    "Shots",
    [
        ps.Field("id", np.int64),
        ps.Field("x", np.float32, (2, 3)),
        ps.Field("image", np.uint8, (4, 4, 3), Png()),
        ps.Field("day", str),
        ps.Field("name", str, nullable=True),
    ],
)
BLOB = ps.Field("x", np.uint8, (2,), Npy())


def shots(*ids: int) -> list[dict[str, Any]]:
    """Return rows of `SCHEMA`."""
    return [
        {
            "id": one,
            "x": np.full((2, 3), one, np.float32),
            "image": np.full((4, 4, 3), one, np.uint8),
            "day": ("mon", "t/ue é%")[one % 2],
            "name": f"n{one}" if one % 3 else None,
        }
        for one in ids
    ]


def seen(path: Path | str) -> list[int]:
    """Return the ids that Penstock reads, and check that delta-rs reads the same."""
    ours = sorted(int(row["id"]) for row in ps.open(str(path)).select("id")) if ps.open(str(path)).num_rows else []
    assert sorted(deltalake.DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist()) == ours
    return ours


def test_written_cells_are_read_with_their_codecs(tmp_path: Path) -> None:
    """Fields and codecs are stored in the log, and cells are decoded with them."""
    pytest.importorskip("cv2")
    written = ps.write(tmp_path / "t", SCHEMA, shots(0, 1, 2), format=DELTA, partition_by="day")
    ds = ps.open(tmp_path / "t")
    rows = {int(row["id"]): row for row in ds}

    assert len(written.files) == 2
    assert [type(field.codec) for field in ds.schema] == [Scalar, Tensor, Png, Scalar, Scalar]
    assert np.array_equal(rows[2]["x"], np.full((2, 3), 2, np.float32))
    assert np.array_equal(rows[1]["image"], np.full((4, 4, 3), 1, np.uint8))
    assert (rows[1]["day"], rows[1]["name"], rows[0]["name"]) == ("t/ue é%", "n1", None)


def test_delta_rs_reads_what_we_write(tmp_path: Path) -> None:
    """delta-rs reads the same values, partitions and statistics."""
    kinds = {
        "id": pa.array([1, 2, None], pa.int32()),
        "day": ["a b", "ü", None],
        "when": pa.array([dt.datetime(2026, 1, 1, 1, 2, 3, 4567, dt.UTC), None, None], pa.timestamp("us", "UTC")),
        "date": pa.array([dt.date(2026, 1, 1), None, dt.date(2027, 1, 1)]),
        "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(10, 2)),
        "nested": [{"a": [1, 2], "b": "x"}, None, {"a": [], "b": None}],
        "flag": [True, None, False],
        "raw": [b"\x00\xff", None, b""],
        "small": pa.array([1, None, -1], pa.int8()),
        "half": pa.array([0.5, None, 1.5], pa.float32()),
        "pairs": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "long": pa.array(["x" * 100, None, "a"]),
    }
    table = pa.table(kinds)
    ps.write(tmp_path / "t", data=table, format=DELTA, partition_by="day")
    theirs = deltalake.DeltaTable(str(tmp_path / "t"))
    rows = {row["day"]: row for row in theirs.to_pyarrow_table().to_pylist()}
    stated = {row["partition.day"]: row for row in pa.table(theirs.get_add_actions(flatten=True)).to_pylist()}

    assert rows == {row["day"]: row for row in table.to_pylist()}
    assert (stated["a b"]["num_records"], stated["a b"]["min.id"], stated["a b"]["null_count.id"]) == (1, 1, 0)
    assert stated["a b"]["max.long"] == "x" * 32 + "\U0010ffff"
    assert stated["ü"]["null_count.half"] == 1
    assert ps.open(tmp_path / "t").where(ps.col("id") == 2).num_rows == 1


def test_timestamps_without_a_zone_need_their_feature(tmp_path: Path) -> None:
    """A column of timestamps without a zone adds the reader feature timestampNtz to the protocol."""
    table = pa.table({"id": [1], "t": pa.array([0], pa.timestamp("us"))})
    ps.write(tmp_path / "t", data=table, format=DELTA)
    protocol = deltalake.DeltaTable(str(tmp_path / "t")).protocol()

    assert (protocol.min_reader_version, protocol.reader_features) == (3, ["timestampNtz"])
    assert seen(tmp_path / "t") == [1]


def test_rows_are_appended_by_both(tmp_path: Path) -> None:
    """Penstock and delta-rs append to the same table, and columns keep their codecs."""
    pytest.importorskip("cv2")
    path = str(tmp_path / "t")
    ps.write(path, SCHEMA, shots(0, 1), format=DELTA, partition_by="day")
    deltalake.write_deltalake(path, deltalake.DeltaTable(path).to_pyarrow_table(), mode="append")
    ps.write(path, data=shots(2, 3), format=DELTA, mode="append")
    ps.write(path, SCHEMA, shots(4), format=DELTA, mode="append", partition_by="day")

    assert seen(path) == [0, 0, 1, 1, 2, 3, 4]
    assert ps.open(path).schema["image"].codec == Png()
    assert ps.open(path, version=0).num_rows == 2


def test_a_table_of_delta_rs_is_appended_to(tmp_path: Path) -> None:
    """An append to a table of delta-rs uses the columns and partitions of its log."""
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, pa.table({"id": [1], "day": ["mon"]}), partition_by=["day"])
    ps.write(path, data=[{"id": 2, "day": "tue"}], format=DELTA, mode="append")

    assert seen(path) == [1, 2]
    assert ps.open(path).where(ps.col("day") == "tue").num_rows == 1


def test_a_table_is_replaced_in_one_version(tmp_path: Path) -> None:
    """An overwrite is one version, may change columns and partitions, and leaves older versions readable."""
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, pa.table({"id": [1, 2, 3], "day": ["a b", "c%d", None]}), partition_by=["day"])
    deltalake.DeltaTable(path).delete("id = 2")
    before = deltalake.DeltaTable(path).version()
    ps.write(path, data={"id": [7, 8], "kind": ["x", "y"]}, format=DELTA, mode="overwrite", partition_by="kind")

    assert seen(path) == [7, 8]
    assert deltalake.DeltaTable(path).version() == before + 1
    assert ps.open(path).schema.names == ("id", "kind")
    assert sorted(int(row["id"]) for row in ps.open(path, version=before)) == [1, 3]


def test_a_table_with_a_checkpoint_is_replaced(tmp_path: Path) -> None:
    """An overwrite of a table with a checkpoint keeps the table's configuration."""
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, pa.table({"id": [1]}), configuration={"delta.logRetentionDuration": "interval 9 days"})
    deltalake.DeltaTable(path).create_checkpoint()
    ps.write(path, data={"id": [2], "more": ["x"]}, format=DELTA, mode="overwrite")

    assert seen(path) == [2]
    assert deltalake.DeltaTable(path).metadata().configuration == {"delta.logRetentionDuration": "interval 9 days"}


def test_a_table_without_rows_can_be_written(tmp_path: Path) -> None:
    """A schema without rows makes a table without rows."""
    ps.write(tmp_path / "t", ps.Schema("", [ps.Field("id", np.int64)]), [], format=DELTA)

    assert ps.open(tmp_path / "t").num_rows == 0
    assert deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().num_rows == 0


def test_numbers_without_a_type_in_delta_are_widened(tmp_path: Path) -> None:
    """Unsigned numbers are stored as wider ones, and arrays of them or of half-precision floats as .npy."""
    schema = suited(ps.Schema("", [ps.Field("a", np.uint8), ps.Field("b", np.float16, (1,)), ps.Field("c", np.uint8, (3,))]))
    ps.write(tmp_path / "t", schema, [{"a": 255, "b": np.full(1, 0.5, "f2"), "c": np.arange(3, dtype="u1")}], format=DELTA)
    row = ps.open(tmp_path / "t")[0]

    assert [field.codec for field in schema] == [Scalar("int16"), Npy(), Npy()]
    assert (int(row["a"]), float(row["b"][0]), row["c"].tolist(), row["c"].dtype) == (255, 0.5, [0, 1, 2], np.uint8)


@pytest.mark.parametrize("kind", [pa.uint8(), pa.float16(), pa.timestamp("ns"), pa.duration("s"), pa.time64("us")], ids=str)
def test_types_that_delta_does_not_have_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    """An Arrow column of a type that Delta lacks raises ArgumentError, and no files are left."""
    with pytest.raises(ArgumentError, match=r"Column 'x' is stored as .*, for which Delta has no type"):
        ps.write(tmp_path / "t", pa.schema([("x", kind)]), format=DELTA)

    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("field", "match"),
    [
        (
            ps.Field("x", np.uint64),
            r"Make it int64, which holds numbers up to 2\*\*63 - 1, or text; arrays of it in a penstock",
        ),
        (ps.Field("x", np.float16), r"Make it float32, or text"),
        (
            ps.Field("x", np.uint8, (), Scalar()),
            r"Cast the column to int16, or give a penstock\.Schema whose field has no codec",
        ),
        (ps.Field("x", "datetime64[ns]"), r"structs or maps\. Cast the column, or its field in the schema, to one of them\."),
    ],
    ids=["uint64", "float16", "a codec of its own", "nanoseconds"],
)
def test_the_remedy_for_an_unsupported_field_is_reported(tmp_path: Path, field: ps.Field, match: str) -> None:
    """A field that Delta cannot store raises ArgumentError, whose remedy fits that field, and no files are left."""
    with pytest.raises(ArgumentError, match=match):
        ps.write(tmp_path / "t", ps.Schema("U", [field]), format=DELTA)

    assert not (tmp_path / "t").exists()


def test_the_suggested_remedy_works(tmp_path: Path) -> None:
    """Arrays of uint64 in a schema, as the message suggests, keep their type."""
    schema = ps.Schema("U", [ps.Field("x", np.uint64, (1,))])
    ps.write(tmp_path / "t", schema, [{"x": np.array([2**64 - 1], np.uint64)}], format=DELTA)

    assert ps.open(tmp_path / "t")[0]["x"].tolist() == [2**64 - 1]


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (pa.table({"a": [1], "A": [2]}), "'a' and 'A'"),
        ({"Ü": [1], "b": [2], "ü": [3]}, "'Ü' and 'ü'"),
        (pa.table({"s": [{"t": {"a": 1, "A": 2}}]}), "'s.t.a' and 's.t.A'"),
        (pa.table({"s": [[{"a": 1, "A": 2}]]}), "'s.item.a' and 's.item.A'"),
    ],
)
@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_names_that_differ_only_in_case_are_refused(tmp_path: Path, data: Any, names: str, mode: Any) -> None:
    """Column or field names that differ only in case raise ArgumentError, and no table is created."""
    with pytest.raises(
        ArgumentError, match=rf"write\(\) got the columns {names}, which are the same to Delta, .* Rename one of"
    ):
        ps.write(tmp_path / "t", data=data, format=DELTA, mode=mode)

    assert not (tmp_path / "t").exists()


def test_an_existing_table_gets_no_names_that_differ_only_in_case(tmp_path: Path) -> None:
    """An append or overwrite with names that differ only in case raises; names in different structs may differ so."""
    path = tmp_path / "t"
    table = pa.table({"id": [1], "s": [{"ID": 1, "t": 2}], "T": [3]})
    ps.write(path, data=table, format=DELTA)
    more = table.append_column("ID", pa.array([2]))
    with pytest.raises(ArgumentError, match=r"The schema is not that of .*: 'ID' is not in the table"):
        ps.write(path, more.schema, more, format=DELTA, mode="append")
    with pytest.raises(ArgumentError, match=r"write\(\) got the columns 'id' and 'ID', which are the same to Delta"):
        ps.write(path, data=more, format=DELTA, mode="overwrite")

    assert seen(path) == [1]
    assert len(list(path.glob("*.parquet"))) == 1


def test_an_existing_table_is_not_overwritten_by_default(tmp_path: Path) -> None:
    """By default, writing to an existing table raises ArgumentError."""
    ps.write(tmp_path / "t", data={"id": [1]}, format=DELTA)

    with pytest.raises(ArgumentError, match=r'is a Delta table already, at version 0; mode="error" expects an empty place'):
        ps.write(tmp_path / "t", data={"id": [2]}, format=DELTA)


def test_a_plain_parquet_table_does_not_become_a_delta_table(tmp_path: Path) -> None:
    """Writing Delta to a directory of plain Parquet raises ArgumentError, because a log would hide its rows."""
    ps.write(tmp_path / "t", data={"id": [1]})

    with pytest.raises(ArgumentError, match=r"holds files that are not a Delta table: part-00000"):
        ps.write(tmp_path / "t", data={"id": [2]}, format=DELTA, mode="append")


@pytest.mark.parametrize(
    ("configuration", "mode", "match"),
    [
        ({"delta.appendOnly": "true"}, "overwrite", "has the property delta.appendOnly"),
        ({"delta.constraints.positive": "id > 0"}, "append", "delta.constraints.positive"),
        ({"delta.columnMapping.mode": "name"}, "append", "delta.columnMapping.mode"),
    ],
)
def test_unsupported_rules_are_refused_by_name(tmp_path: Path, configuration: dict[str, str], mode: Any, match: str) -> None:
    """Writing raises ArgumentError if the table has a rule that the write would break, and names the rule."""
    log = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    ps.write(tmp_path / "t", data={"id": [1]}, format=DELTA)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        line.get("metaData", {})["configuration"] = configuration
    log.write_text("\n".join(map(json.dumps, lines)))

    with pytest.raises(ArgumentError, match=match):
        ps.write(tmp_path / "t", data={"id": [2]}, format=DELTA, mode=mode)


def test_unsupported_writer_features_are_refused_by_name(tmp_path: Path) -> None:
    """Writing to a table with an unsupported writer feature raises ArgumentError, which names the feature."""
    log = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    ps.write(tmp_path / "t", data={"id": [1]}, format=DELTA)
    features = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking", "appendOnly"]}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("\n".join(json.dumps({"protocol": features} if "protocol" in line else line) for line in lines))

    with pytest.raises(ArgumentError, match=r"rules for writers that Penstock does not support: rowTracking;"):
        ps.write(tmp_path / "t", data={"id": [2]}, format=DELTA, mode="append")


def test_concurrent_appends_all_succeed(tmp_path: Path) -> None:
    """Concurrent appends all succeed as successive versions, in whatever order they close."""
    path = str(tmp_path / "t")
    ps.write(path, data={"id": [0]}, format=DELTA)
    first, second = (ps.write(path, format=DELTA, mode="append") for _ in range(2))
    first.append({"id": 1})
    second.append({"id": 2})
    deltalake.write_deltalake(path, pa.table({"id": [3]}), mode="append")
    second.close()
    first.close()

    assert seen(path) == [0, 1, 2, 3]
    assert deltalake.DeltaTable(path).version() == 3


@pytest.mark.slow
def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    """Sixteen appends from four threads all succeed, each as a version of its own."""
    path = str(tmp_path / "t")
    ps.write(path, data={"id": [0]}, format=DELTA)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: ps.write(path, data={"id": [one]}, format=DELTA, mode="append", threads=1), range(1, 17)))

    assert seen(path) == list(range(17))
    assert deltalake.DeltaTable(path).version() == 16


def test_concurrent_appends_to_a_new_table_all_succeed(tmp_path: Path) -> None:
    """One of several concurrent appends creates the table, and the others append to it."""
    path = str(tmp_path / "t")
    gate = threading.Barrier(12)

    def written(one: int) -> int:
        gate.wait()
        return ps.write(path, data={"id": [one]}, format=DELTA, mode="append", threads=1).num_rows

    with ThreadPoolExecutor(12) as pool:
        rows = list(pool.map(written, range(12)))

    assert rows == [1] * 12
    assert seen(path) == list(range(12))
    assert sorted(found.name for found in (tmp_path / "t/_delta_log").iterdir()) == [f"{at:020d}.json" for at in range(12)]
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 12


def test_processes_that_create_a_table_all_succeed(tmp_path: Path) -> None:
    """One of several processes creates the table, and the others append to it."""
    path = str(tmp_path / "t")
    script = (
        "import sys, penstock as ps\n"
        "with ps.write(sys.argv[1], format='delta', mode='append') as table:\n"
        "    table.append({'id': int(sys.argv[2])})\n"
        "    print('written', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", script, path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment, "text": True}
    others = [subprocess.Popen([*command, str(one)], **pipes) for one in range(3)]
    ready = [other.stdout.readline() for other in others if other.stdout]
    for other in others:
        other.communicate("\n", timeout=120)

    assert (ready, [other.returncode for other in others]) == (["written\n"] * 3, [0] * 3)
    assert seen(path) == [0, 1, 2]


def test_a_table_created_meanwhile_is_appended_to_if_columns_match(tmp_path: Path) -> None:
    """An append joins a table that another writer created meanwhile, if columns and partitions match in any order."""
    path = str(tmp_path / "t")
    late = ps.write(path, format=DELTA, mode="append", partition_by="day")
    late.append({"day": "mon", "id": 1})
    other_rows = pa.table({"id": [2], "day": ["tue"]})
    deltalake.write_deltalake(path, other_rows, partition_by=["day"])
    deltalake.write_deltalake(path, other_rows, mode="append")
    late.close()

    assert seen(path) == [1, 2, 2]
    assert deltalake.DeltaTable(path).version() == 2
    assert ps.open(path).where(ps.col("day") == "mon").num_rows == 1


@pytest.mark.parametrize(
    ("first", "options", "match"),
    [
        (
            {"id": 1},
            {},
            r"is not that of .*t, which another writer has created meanwhile: 'x' is not in the table; expected the sa",
        ),
        ({"id": 1, "x": b"a", "y": 2}, {}, r"meanwhile: 'y' is missing; expected the same columns: id, x, y\."),
        ({"id": "1", "x": b"a"}, {}, r"meanwhile: 'id' would be stored as int64 and is string there;"),
        ({"id": 1, "x": np.zeros((2, 2), np.uint8)}, {}, r"meanwhile: 'x' is Field\(.*\) and not Field\(.*Npy"),
        (
            {"id": 1, "x": b"a"},
            {"partition_by": "id"},
            r"write\(\) got partition_by=\(\); expected \('id',\), the partitions of",
        ),
    ],
)
def test_a_table_created_meanwhile_with_other_columns_is_refused(
    tmp_path: Path, first: dict[str, Any], options: dict[str, Any], match: str
) -> None:
    """An append raises and leaves no files if the table created meanwhile has other columns or partitions."""
    path = str(tmp_path / "t")
    late = ps.write(path, format=DELTA, mode="append")
    late.append({"id": 9, "x": b"b"})
    ps.write(path, data=[first], format=DELTA, **options)

    with pytest.raises(ArgumentError, match=match):
        late.close()
    assert ps.open(path).num_rows == len(list((tmp_path / "t").rglob("*.parquet"))) == 1
    assert [found.name for found in (tmp_path / "t/_delta_log").iterdir()] == [f"{0:020d}.json"]


@pytest.mark.parametrize(
    ("ours", "theirs", "match"),
    [
        (BLOB, pa.schema([pa.field("x", pa.binary())]), r"'x' is Field\(.*\), and plain binary there"),
        (ps.Field("x", np.uint8, (2,), Npy(), nullable=True), ps.Schema("", [BLOB]), r"'x' may be null, and may not be there"),
    ],
)
def test_a_table_created_meanwhile_with_other_codecs_or_nulls_is_refused(
    tmp_path: Path, ours: ps.Field, theirs: Any, match: str
) -> None:
    """An append raises if the table created meanwhile has another codec, or a field that may not be null."""
    late = ps.write(tmp_path / "t", ps.Schema("", [ours]), format=DELTA, mode="append")
    ps.write(tmp_path / "t", theirs, format=DELTA).close()

    with pytest.raises(ArgumentError, match=match):
        late.close()


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_only_one_writer_that_does_not_append_creates_the_table(tmp_path: Path, mode: Any) -> None:
    """If another writer created the table meanwhile, a write that does not append raises and leaves no files."""
    path = str(tmp_path / "t")
    late = ps.write(path, format=DELTA, mode=mode)
    late.append({"id": 9})
    ps.write(path, data={"id": [1]}, format=DELTA, mode=mode)

    with pytest.raises(DataChangedError, match=r"Another writer committed in version 0 of .* nothing of this write appears"):
        late.close()
    assert seen(path) == [1]
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 1


def test_a_writer_that_dies_before_its_second_attempt_leaves_files_of_no_version(tmp_path: Path) -> None:
    """A writer that dies before its second attempt to commit leaves files that belong to no version."""
    path = tmp_path / "t"
    script = (
        "import os, sys, penstock as ps\nfrom penstock.formats.delta import write as _delta_writing\n"
        "put = _delta_writing.create_exclusive\n"
        "def last(place, path, *more):\n"
        "    return os._exit(9) if path.endswith('1.json') else put(place, path, *more)\n"
        "with ps.write(sys.argv[1], format='delta', mode='append') as table:\n"
        "    table.append({'id': 5})\n"
        "    ps.write(sys.argv[1], data={'id': [1]}, format='delta')\n"
        "    _delta_writing.create_exclusive = last\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = subprocess.run([sys.executable, "-c", script, str(path)], check=False, env=environment, timeout=120).returncode
    before = seen(path)
    ps.write(path, data={"id": [2]}, format=DELTA, mode="append")

    assert (code, before, seen(path)) == (9, [1], [1, 2])
    assert len(list(path.glob("*.parquet"))) == 3


def test_an_aborted_write_removes_nothing_of_other_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted write keeps the log if another writer has committed to it meanwhile, however late."""
    path = tmp_path / "t"
    late = DELTA.begin(destination(path), "append")
    late.path(f"part-{late.id}.parquet")
    removed = Path.rmdir

    def after_another(folder: Path) -> None:
        if not (path / "_delta_log" / f"{0:020d}.json").exists():
            ps.write(path, data={"id": [1]}, format=DELTA)
        removed(folder)

    monkeypatch.setattr(Path, "rmdir", after_another)
    late.abort()

    assert seen(path) == [1]


def test_an_overwrite_does_not_lose_concurrent_commits(tmp_path: Path) -> None:
    """Overwriting a table that changed meanwhile raises an error and leaves no files."""
    path = str(tmp_path / "t")
    ps.write(path, data={"id": [0]}, format=DELTA)
    late = ps.write(path, pa.schema([("id", pa.int64())]), format=DELTA, mode="overwrite")
    late.append({"id": 9})
    ps.write(path, data={"id": [1]}, format=DELTA, mode="append")

    with pytest.raises(DataChangedError, match=r"Another writer committed in version 1 of .* nothing of this write appears"):
        late.close()
    assert seen(path) == [0, 1]
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 2


def test_an_append_to_changed_columns_raises(tmp_path: Path) -> None:
    """An append raises DataChangedError if another writer changed the table's columns meanwhile."""
    path = str(tmp_path / "t")
    ps.write(path, data={"id": [0]}, format=DELTA)
    late = ps.write(path, format=DELTA, mode="append")
    late.append({"id": 9})
    ps.write(path, data={"id": [1], "more": ["x"]}, format=DELTA, mode="overwrite")

    with pytest.raises(DataChangedError, match=r"Another writer changed its columns in version 1"):
        late.close()


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """A write that fails leaves neither a table nor files."""
    with pytest.raises(DataError), ps.write(tmp_path / "t", SCHEMA, format=DELTA, row_group_rows=1) as table:
        table.append({"id": "x"})

    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("present", [True, False], ids=["a table", "no table"])
def test_a_writer_that_dies_leaves_files_of_no_version(tmp_path: Path, *, present: bool) -> None:
    """Data files without a commit belong to no version, and do not prevent the next write."""
    path = tmp_path / "t"
    if present:
        ps.write(path, data={"id": [0]}, format=DELTA)
    script = (
        "import os, sys, penstock as ps\nfrom penstock.formats.delta import write as _delta_writing\n"
        "from penstock.formats.delta import DeltaFormat\n"
        "_delta_writing.create_exclusive = lambda *_: os._exit(9)\n"
        "ps.write(sys.argv[1], data={'id': [5]}, format=DeltaFormat(), mode='append')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = subprocess.run([sys.executable, "-c", script, str(path)], check=False, env=environment, timeout=120).returncode
    orphans = [found for found in path.glob("*.parquet") if pq.read_table(found)["id"].to_pylist() == [5]]
    ps.write(path, data={"id": [1]}, format=DELTA, mode="append")

    assert (code, len(orphans)) == (9, 1)
    assert seen(path) == ([0, 1] if present else [1])


def test_a_disk_that_refuses_the_commit_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that refuses hard links raises WriteError, and the table stays as it was."""
    ps.write(tmp_path / "t", data={"id": [0]}, format=DELTA)

    def refused(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)

    with pytest.raises(WriteError, match=r"the disk has no hard links \(Operation not permitted\), which commits need"):
        ps.write(tmp_path / "t", data={"id": [1]}, format=DELTA, mode="append")
    assert seen(tmp_path / "t") == [0]
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 1
    assert [found.name for found in (tmp_path / "t/_delta_log").iterdir()] == [f"{0:020d}.json"]


def test_an_interrupt_after_the_commit_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a commit names are never removed, even if the writer is interrupted right after the commit."""
    link = os.link

    def interrupted(one: str, two: str) -> None:
        link(one, two)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ps.write(tmp_path / "t", data={"id": [1]}, format=DELTA)

    assert seen(tmp_path / "t") == [1]


def test_an_empty_partition_value_is_refused(tmp_path: Path) -> None:
    """An empty partition value raises DataError, because Delta reads it as null."""
    with pytest.raises(DataError, match=r"Partition field 'day' has an empty text, which Delta tables read as a null"):
        ps.write(tmp_path / "t", data={"id": [1], "day": [""]}, format=DELTA, partition_by="day")


def test_storage_without_exclusive_creation_is_refused() -> None:
    """A filesystem that cannot create files exclusively raises ArgumentError; fsspec's memory filesystem can."""
    filesystem = fsspec.filesystem("memory")
    ps.write("/delta-writing", data={"id": [1]}, filesystem=filesystem, format=DELTA)
    ps.write("/delta-writing", data={"id": [2]}, filesystem=filesystem, format=DELTA, mode="append")

    assert sorted(int(row["id"]) for row in ps.open("/delta-writing", filesystem=filesystem)) == [1, 2]
    with pytest.raises(ArgumentError, match=r"cannot create a file only if none exists"):
        ps.write("t", data={"id": [1]}, filesystem=pafs.SubTreeFileSystem("/nowhere", pafs.LocalFileSystem()), format=DELTA)


def test_a_stored_field_that_no_longer_fits_its_column_is_ignored(tmp_path: Path) -> None:
    """A stored field whose dtype no longer fits its column's type gives no codec."""
    log = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    ps.write(tmp_path / "t", ps.Schema("", [ps.Field("x", np.float32, (2,))]), [{"x": np.zeros(2, np.float32)}], format=DELTA)
    log.write_text(log.read_text().replace(r"\\\"dtype\\\": \\\"float32\\\"", r"\\\"dtype\\\": \\\"float64\\\""))

    assert ps.open(tmp_path / "t").schema["x"].codec is None


TYPES = st.recursive(
    st.sampled_from(
        [pa.int8(), pa.int64(), pa.float32(), pa.string(), pa.binary(), pa.bool_(), pa.date32(), pa.decimal128(9, 2)]
    ),
    lambda inner: st.one_of(
        inner.map(pa.list_), inner.map(lambda one: pa.struct([("a", one)])), inner.map(lambda one: pa.map_(pa.string(), one))
    ),
    max_leaves=4,
)


@given(kind=TYPES)
def test_types_written_to_the_log_are_read_back(kind: pa.DataType) -> None:
    """The Delta type of an Arrow type is read back as the same Arrow type."""
    from penstock.formats.delta.schema import _types

    assert _types(delta_type(kind, "x"), "none")[0] == kind


def test_views_of_text_and_bytes_are_text_and_bytes(tmp_path: Path) -> None:
    """Views of text and bytes, as delta-rs returns them, can be written and then read by Penstock and delta-rs."""
    columns = {"s": pa.array(["a", "b" * 40, None], pa.string_view()), "b": pa.array([b"a", b"b", None], pa.binary_view())}
    table = pa.table({"id": [1, 2, 3], **columns, "l": pa.array([["a"], None, []], pa.list_(pa.string_view()))})
    for mode in ("error", "append", "overwrite"):
        ps.write(tmp_path / "t", data=table, format="delta", mode=mode)

        assert ps.open(tmp_path / "t").to_arrow().to_pylist()[-3:] == table.to_pylist()
        assert pa.table(deltalake.DeltaTable(tmp_path / "t").scan()).num_rows == (6 if mode == "append" else 3)

    ps.write(tmp_path / "plain", data=table)
    ps.write(tmp_path / "copy", data=ps.open(tmp_path / "plain"))
    assert ps.open(tmp_path / "copy").to_arrow().to_pylist() == table.to_pylist()


def tensors(values: Any, **options: Any) -> pa.Table:
    """Return a table with a column of tensors that have these values in memory order."""
    numbers = np.asarray(values, np.int32)
    kind = pa.fixed_shape_tensor(pa.int32(), numbers.shape[1:], **options)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), int(np.prod(numbers.shape[1:])))
    return pa.table({"x": pa.ExtensionArray.from_storage(kind, lists)})


@pytest.mark.parametrize("options", [{}, {"dim_names": ["rows", "columns"]}, {"permutation": [0, 1]}])
def test_tensors_of_arrow_keep_their_shape(tmp_path: Path, options: dict[str, Any]) -> None:
    """Arrow tensors keep their shape without a schema of Penstock, also in appends; delta-rs reads lists."""
    numbers = np.arange(12).reshape(2, 2, 3)
    ps.write(tmp_path / "t", data=tensors(numbers, **options), format=DELTA)
    more = tensors(numbers + 12, **options)
    ps.write(tmp_path / "t", more.schema, more, format=DELTA, mode="append")
    ps.write(tmp_path / "t", data=tensors(numbers + 24), format=DELTA, mode="append")
    ps.write(tmp_path / "t", data={"x": (numbers + 36).astype(np.int32)}, format=DELTA, mode="append")

    dataset = ps.open(tmp_path / "t")

    assert (dataset.schema["x"].shape, dataset.schema["x"].codec) == ((2, 3), Tensor())
    (batch,) = dataset.batch(8)
    assert batch["x"].tolist() == np.arange(48).reshape(8, 2, 3).tolist()
    assert min(deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table()["x"].to_pylist()) == list(range(6))
    turned = tensors(np.arange(6).reshape(1, 3, 2))
    with pytest.raises(DataError, match=r"expected tensors or lists of int32 \(2, 3\)"):
        ps.write(tmp_path / "t", data=turned, format=DELTA, mode="append")
    with pytest.raises(ArgumentError, match="'x' would be stored as"):
        ps.write(tmp_path / "t", turned.schema, turned, format=DELTA, mode="append")


def test_tensors_whose_shape_would_be_lost_are_refused(tmp_path: Path) -> None:
    """Tensors with permuted axes or inside structs raise ArgumentError, and the suggested remedy works."""
    turned = tensors(np.arange(6).reshape(1, 2, 3), permutation=[1, 0])
    inside = pa.table({"s": pa.StructArray.from_arrays([turned["x"].combine_chunks()], ["x"])})

    with pytest.raises(
        ArgumentError, match=r"Column 'x' is .*, whose axes are permuted, and Delta stores tensors as lists.* Reorder them: "
    ):
        ps.write(tmp_path / "t", data=turned, format=DELTA)
    with pytest.raises(ArgumentError, match=r"Column 's' is struct.*, with tensors inside, and Delta stores tensors as lists"):
        ps.write(
            tmp_path / "t",
            data=pa.table({"s": pa.StructArray.from_arrays([tensors([[[1]]])["x"].combine_chunks()], ["x"])}),
            format=DELTA,
        )
    with pytest.raises(ArgumentError, match="Column 's' is struct"):
        ps.write(tmp_path / "t", data=inside, format=DELTA)
    assert not (tmp_path / "t").exists()

    numbers = np.ascontiguousarray(turned["x"].combine_chunks().to_numpy_ndarray())
    ps.write(tmp_path / "t", data=pa.table({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(numbers)}), format=DELTA)
    assert ps.open(tmp_path / "t")[0]["x"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("M8[us]", ["10000-01-01", "2020-01-01"]),
        ("M8[D]", ["-0001-01-01", "2020-01-01"]),
        ("M8[D]", ["0000-01-01", "2020-01-01"]),
    ],
)
def test_times_outside_the_range_of_python_have_no_bounds(tmp_path: Path, dtype: str, values: list[str]) -> None:
    """Times outside Python's range are stored without bounds, and filters still find the other rows."""
    given_values = np.array(values, dtype)
    ps.write(tmp_path / "t", data={"t": given_values, "i": [1, 2]}, format=DELTA)

    dataset = ps.open(tmp_path / "t")

    assert [row["t"] for row in dataset] == list(given_values)
    assert dataset.where(ps.col("t") == given_values[1]).num_rows == 1
    (add,) = [
        line["add"] for path in (tmp_path / "t" / "_delta_log").glob("*.json") for line in lines_of(path) if "add" in line
    ]
    assert json.loads(add["stats"])["minValues"] == {"i": 1}
    assert deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table().num_rows == 2


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the actions of a commit."""
    return [json.loads(line) for line in path.read_text().splitlines()]
