"""`import petastorm` means Penstock in the executors of a real Spark too.

Where pyspark is not installed beside Penstock, `PENSTOCK_SPARK` names an interpreter that has it; else one is made for the
test, of pyspark alone (some 400 MB to fetch), which finds everything else where this one does. Java comes from the machine.
"""

from __future__ import annotations

import importlib
import os
import shutil
import site
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import petastorm_tables as tables
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPARK = "pyspark==4.3.0"

BEGIN = """
import os, sys
from pyspark.sql import SparkSession

url, master, pool = sys.argv[1:]

def session():
    made = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    made = made.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    return made.getOrCreate()

def read(part):
    import warnings
    warnings.simplefilter("error", UserWarning)  # of another Petastorm, which there is not
    import petastorm.predicates
    from petastorm import make_reader
    odd = petastorm.predicates.in_lambda(["id"], lambda number: number % 2 == 1)
    with make_reader(url, cur_shard=part, shard_count=2, predicate=odd, workers_count=1,
                     reader_pool_type=pool) as reader:
        return petastorm.__name__, sorted(int(row.id) for row in reader)

def told(spark):
    spark.sparkContext.setLogLevel("OFF")
    found = spark.sparkContext.parallelize([0, 1], 2).map(read).collect()
    print("FOUND", sorted({name for name, _ in found}), sorted(number for _, numbers in found for number in numbers))
"""

BEFORE = """
import penstock.dropin
spark = session()
told(spark)
spark.stop()
"""

AFTER = """
spark = session()
import penstock.dropin
told(spark)
spark.stop()
"""

APART = """
import penstock.dropin
for name in ("PYTHONPATH", "PENSTOCK_DROPIN"):  # as executors on other machines do not have them
    del os.environ[name]
spark = session()
try:
    told(spark)
except Exception as error:
    print("ALONE", "No module named 'petastorm'" in str(error))
penstock.dropin.ship(spark)
told(spark)
spark.stop()
"""


@pytest.fixture(scope="module")
def spark_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter that has Spark and Penstock."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, which is not installed.")
    given = os.environ.get("PENSTOCK_SPARK") or (sys.executable if find_spec("pyspark") else None)
    if given is not None:
        return Path(given)
    place = tmp_path_factory.mktemp("spark")
    python = place / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", SPARK], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"Spark cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    (packages,) = (place / "lib").glob("*/site-packages")
    source = Path(importlib.import_module("penstock").__file__ or "").parent.parent
    (packages / "beside.pth").write_text("\n".join([*site.getsitepackages(), str(source)]))
    return python


@pytest.mark.parametrize(
    ("script", "master", "pool"),
    [
        (BEFORE, "local-cluster[2,1,1024]", "thread"),
        (BEFORE, "local[2]", "process"),
        (AFTER, "local[2]", "thread"),
        (APART, "local-cluster[2,1,1024]", "thread"),
    ],
    ids=["imported before the session", "with workers of their own", "imported after the session", "on other machines"],
)
def test_executors_read_with_the_door(tmp_path: Path, spark_python: Path, script: str, master: str, pool: str) -> None:
    """A function that Spark runs imports Petastorm, and reads its part of the rows."""
    url = tables.small(tmp_path / "t")
    (tmp_path / "job.py").write_text(BEGIN + script)
    apart = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PENSTOCK_DROPIN")}
    environment = {**apart, "PYSPARK_PYTHON": str(spark_python), "SPARK_LOCAL_IP": "127.0.0.1"}

    done = subprocess.run(
        [spark_python, tmp_path / "job.py", url, master, pool],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FOUND", "ALONE"))]
    alone = ["ALONE True"] if script is APART else []
    assert lines == [*alone, f"FOUND ['penstock.petastorm'] {list(range(1, 40, 2))}"]
