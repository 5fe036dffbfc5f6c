"""`import petastorm` means Penstock in the executors of a real Spark too.

`PENSTOCK_SPARK` names an interpreter with pyspark, if the one that runs the tests has none. Otherwise pyspark is installed
for the run, a download of some 400 MB. Java must be installed.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import petastorm_tables as tables
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options that start Java faster. The tests end before optimized code would pay off."""

BEGIN = """
import os, sys
from pyspark.sql import SparkSession

url, master, *pools = sys.argv[1:]

def session():
    made = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    made = made.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    return made.getOrCreate()

def read(task):
    part, pool = task
    import warnings
    warnings.simplefilter("error", UserWarning)  # of another Petastorm, which there is not
    import petastorm.predicates
    from petastorm import make_reader
    odd = petastorm.predicates.in_lambda(["id"], lambda number: number % 2 == 1)
    with make_reader(url, cur_shard=part, shard_count=2, predicate=odd, workers_count=1,
                     reader_pool_type=pool) as reader:
        return petastorm.__name__, sorted(int(row.id) for row in reader)

def read_all(spark):
    spark.sparkContext.setLogLevel("OFF")
    for pool in pools:
        rows = spark.sparkContext.parallelize([(0, pool), (1, pool)], 2).map(read).collect()
        print("READ", pool, sorted({name for name, _ in rows}), sorted(number for _, numbers in rows for number in numbers))
"""

BEFORE = """
import penstock.dropin
spark = session()
read_all(spark)
spark.stop()
"""

AFTER = """
spark = session()
import penstock.dropin
read_all(spark)
spark.stop()
"""

REMOTE = """
import penstock.dropin
for name in ("PYTHONPATH", "PENSTOCK_DROPIN"):  # as executors on other machines do not have them
    del os.environ[name]
spark = session()
try:
    read_all(spark)
except Exception as error:
    print("ALONE", "No module named 'petastorm'" in str(error))
penstock.dropin.ship(spark)
read_all(spark)
spark.stop()
"""


@pytest.mark.parametrize(
    ("script", "master", "pools"),
    [
        (BEFORE, "local-cluster[2,1,1024]", ["thread", "process"]),
        (AFTER, "local[2]", ["thread"]),
        (REMOTE, "local-cluster[2,1,1024]", ["thread"]),
    ],
    ids=["imported before the session", "imported after the session", "on other machines"],
)
def test_executors_read_through_penstock(
    tmp_path: Path, spark_python: Path, script: str, master: str, pools: list[str]
) -> None:
    """A function that Spark runs imports Petastorm and reads its shard, in threads or in worker processes."""
    url = tables.small(tmp_path / "t")
    (tmp_path / "job.py").write_text(BEGIN + script)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PENSTOCK_DROPIN")}
    environment |= {"PYSPARK_PYTHON": str(spark_python), "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": JAVA}

    done = subprocess.run(
        [spark_python, tmp_path / "job.py", url, master, *pools],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("READ", "ALONE"))]
    alone = ["ALONE True"] if script is REMOTE else []
    assert lines == [*alone, *(f"READ {pool} ['penstock.petastorm'] {list(range(1, 40, 2))}" for pool in pools)]
