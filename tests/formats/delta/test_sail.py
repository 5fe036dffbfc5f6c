"""Delta tables shared with Sail, which implements Spark's protocol and is independent of delta-rs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.formats.delta import DeltaFormat

pytestmark = pytest.mark.sail

DELTA = DeltaFormat()

# Each line of standard input is code. The value that it assigns to `told` is printed as JSON.
SCRIPT = """
import json, os, sys
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession

answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
server = SparkConnectServer()
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()

def rows(path, **options):
    found = spark.read.format("delta").options(**options).load(path).orderBy("id").collect()
    return [row.asDict() for row in found]

for line in sys.stdin:
    exec(json.loads(line), globals())
    print(json.dumps(globals().pop("told", None), default=lambda value: value.hex()), file=answers)
"""


@pytest.fixture(scope="module")
def sail(sail_python: Path) -> Iterator[Callable[[str], Any]]:
    """Return a function that runs code in a process with a session of Sail, and returns the result."""
    pipe, command = subprocess.PIPE, [str(sail_python), "-c", SCRIPT]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, bufsize=1)
    assert process.stdin is not None
    assert process.stdout is not None
    sink, source = process.stdin, process.stdout

    def run(code: str) -> Any:
        sink.write(json.dumps(code) + "\n")
        answer = source.readline()
        assert answer, f"Sail ended over {code}"
        return json.loads(answer)

    yield run
    process.kill()  # its server has nothing to clean up, and its shutdown may take long
    process.communicate()


def ids(path: Path, **version: Any) -> list[int]:
    """Return all ids, ascending."""
    return sorted(int(row["id"]) for row in ps.open(path, **version))


def test_sail_reads_and_appends_to_what_we_wrote(tmp_path: Path, sail: Callable[[str], Any]) -> None:
    """Sail reads our partitions, widened numbers and encoded cells, and its appended rows are decoded by our codecs."""
    fields = [ps.Field("id", np.int64), ps.Field("day", str), ps.Field("level", np.uint8), ps.Field("x", np.int32, (2, None))]
    rows = [{"id": n, "day": ("mon", "tue é")[n % 2], "level": n, "x": np.full((2, n), n, np.int32)} for n in range(10)]
    path = tmp_path / "t"
    ps.write(path, ps.Schema("S", fields), rows, format=DELTA, partition_by="day")
    before = sail(f"told = rows({str(path)!r})")
    sail(
        f"spark.read.format('delta').load({str(path)!r}).where('id < 3').selectExpr('id + 100 as id', 'day', 'level', 'x')"
        f".write.format('delta').mode('append').save({str(path)!r})"
    )
    ps.write(path, data=[{"id": 500, "day": "wed", "level": 1, "x": np.zeros((2, 1), np.int32)}], format=DELTA, mode="append")
    after = {int(row["id"]): row for row in ps.open(path)}

    assert [(row["id"], row["day"], row["level"]) for row in before] == [(n, ("mon", "tue é")[n % 2], n) for n in range(10)]
    assert sorted(after) == [*range(10), 100, 101, 102, 500]
    assert after[102]["x"].tolist() == after[2]["x"].tolist() == [[2, 2], [2, 2]]
    assert [row["id"] for row in sail(f"told = rows({str(path)!r})")] == sorted(after)
    assert [row["id"] for row in sail(f"told = rows({str(path)!r}, versionAsOf='0')")] == list(range(10))
    assert ids(path, version=0) == list(range(10))


def test_sail_replaces_what_we_wrote(tmp_path: Path, sail: Callable[[str], Any]) -> None:
    """Sail and Penstock overwrite each other's tables, and older versions stay readable."""
    path = tmp_path / "t"
    ps.write(path, data={"id": [1, 2]}, format=DELTA)
    sail(f"spark.range(5).write.format('delta').mode('overwrite').save({str(path)!r})")
    found = ids(path)
    ps.write(path, data={"id": [7]}, format=DELTA, mode="overwrite")

    assert found == list(range(5))
    assert [row["id"] for row in sail(f"told = rows({str(path)!r})")] == ids(path) == [7]
    assert ids(path, version=0) == [1, 2]


def test_we_read_and_append_to_what_sail_wrote(tmp_path: Path, sail: Callable[[str], Any]) -> None:
    """Tables of Sail with partitions, nulls, nested values and deletes are read at every version and appended to."""
    path = tmp_path / "t"
    sail(
        "spark.range(50).selectExpr('id', 'cast(id % 3 as string) p', 'if(id % 2 = 0, null, cast(id as double)) x', "
        "'array(id, id + 1) l', 'named_struct(\"a\", id) s', 'timestamp_micros(id) w')"
        f".write.format('delta').partitionBy('p').save({str(path)!r})"
    )
    sail(f"spark.sql('delete from delta.`{path}` where id < 10').collect()")  # noqa: S608 - the path is the test's own
    ps.write(path, data=ps.open(path, version=0).where(ps.col("id") == 3).to_arrow(), format=DELTA, mode="append")
    found = ps.open(path, version=0).where(ps.col("p") == "1").to_arrow().sort_by("id").to_pylist()

    assert [len(ids(path, version=at)) for at in range(3)] == [50, 40, 41]
    assert [row["id"] for row in found] == list(range(1, 50, 3))
    assert [(row["x"], row["l"], row["s"]) for row in found[:2]] == [(1.0, [1, 2], {"a": 1}), (None, [4, 5], {"a": 4})]
    assert [row["id"] for row in sail(f"told = [dict(id=row['id']) for row in rows({str(path)!r})]")] == ids(path)
