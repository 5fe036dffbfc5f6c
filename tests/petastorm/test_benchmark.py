"""`petastorm.benchmark`: how fast readers and loaders are."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import petastorm_tables as tables
import pytest

from penstock.errors import MissingExtraError
from penstock.petastorm._impl import process_usage as _process
from penstock.petastorm.benchmark import cli, dummy_reader
from penstock.petastorm.benchmark.throughput import (
    ReadMethod,
    WorkerPoolType,
    _time_multiple_iterations,
    _time_warmup_and_work,
    reader_throughput,
)

FEW: dict[str, Any] = {"warmup_cycles_count": 30, "measure_cycles_count": 100}


@pytest.mark.parametrize("pool", list(WorkerPoolType))
def test_rows_are_counted_by_the_second(tmp_path: Path, pool: WorkerPoolType) -> None:
    """More rows are read than there are: the reader has no end."""
    url = tables.small(tmp_path / "t")

    found = reader_throughput(url, ["id", "name"], pool_type=pool, loaders_count=1, spawn_new_process=False, **FEW)

    assert found._fields == ("time_mean", "samples_per_second", "memory_info", "cpu")
    assert found.samples_per_second == pytest.approx(1 / found.time_mean)
    assert found.time_mean > 0
    assert found.memory_info.rss > 10 << 20
    assert found.cpu >= 0


def test_a_process_of_its_own_takes_less_memory(tmp_path: Path) -> None:
    """It has the reader alone, and not what this one has imported."""
    url = tables.small(tmp_path / "t")
    held = bytearray(b"x" * (300 << 20))

    apart = reader_throughput(url, **FEW)
    here = reader_throughput(url, spawn_new_process=False, **FEW)

    assert apart.memory_info.rss + (100 << 20) < here.memory_info.rss
    assert len(held) == 300 << 20


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"field_regex": ["zzz"]}, r"No field of .* matches \['zzz'\]"),
        ({"measure_cycles_count": 0}, "30 rows to warm up and 0 to measure were asked for"),
        ({"warmup_cycles_count": -5}, "-5 rows to warm up"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, asked: dict[str, Any], text: str) -> None:
    """No field, no row, or fewer than none."""
    url = tables.small(tmp_path / "t")

    with pytest.raises(ValueError, match=text):
        reader_throughput(url, spawn_new_process=False, **{**FEW, **asked})


def test_readers_get_more_arguments(tmp_path: Path) -> None:
    """Fields as `make_reader` takes them, where they are given there."""
    url = tables.small(tmp_path / "t")

    with pytest.raises(RuntimeError, match=r"No fields matching the criteria '\['nope'\]'"):
        reader_throughput(url, reader_extra_args={"schema_fields": ["nope"]}, spawn_new_process=False, **FEW)


def test_what_is_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The fields, and what was measured."""
    url = tables.small(tmp_path / "t")

    with caplog.at_level(logging.INFO):
        found = reader_throughput(url, ["i.*"], spawn_new_process=False, **FEW)

    assert "name='id'" in caplog.messages[0]
    assert "name='name'" not in caplog.messages[0]
    assert str(found) in caplog.messages[1]


def test_progress_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At every period, with what the reader says of itself."""
    with caplog.at_level(logging.DEBUG):
        seconds = _time_multiple_iterations(3, lambda: None, lambda: {"queue": 1}, report_period=-1.0)

    assert seconds > 0
    assert len(caplog.messages) == 3
    assert re.fullmatch(r"[\d.]+ \(mean: [\d.]+\) iterations/sec\. \{'queue': 1\}", caplog.messages[0])


def test_another_function_can_do_the_work() -> None:
    """It is called for every row of the warm-up and of the measurement, and the reader is not asked."""
    rows = iter(range(100))
    reader = iter(range(100))

    with_function = _time_warmup_and_work(reader, 2, 3, lambda: next(rows))
    _time_warmup_and_work(reader, 6, 7, do_work_func=lambda: next(rows))
    _time_warmup_and_work(reader, 1, 3)

    assert next(rows) == 2 + 3 + 6 + 7
    assert next(reader) == 1 + 3
    assert with_function.time_mean > 0


def test_tensorflow_says_what_it_needs(tmp_path: Path) -> None:
    """It is not there yet."""
    url = tables.small(tmp_path / "t")

    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[tensorflow\]'"):
        reader_throughput(url, read_method=ReadMethod.TF, spawn_new_process=False, **FEW)


def test_the_command_prints_what_petastorms_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, with the rate, the memory and the processor."""
    url = tables.small(tmp_path / "t")

    cli._main([url, "--field-regex", "id", "-w", "1", "-p", "dummy", "-m", "10", "-n", "20"])

    line = capsys.readouterr().out.splitlines()[-1]
    number = r"\d+\.\d\d"
    assert re.fullmatch(rf"Average sample read rate: {number} samples/sec; RAM {number} MB \(rss\); CPU {number}%", line)


def test_the_command_has_petastorms_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """And its short options."""
    found = vars(cli._parse_args(["file:///t"]))

    assert found == {
        "dataset_path": "file:///t",
        "field_regex": None,
        "workers_count": 3,
        "pool_type": WorkerPoolType.THREAD,
        "warmup_cycles": 200,
        "measure_cycles": 1000,
        "profile_threads": False,
        "read_method": ReadMethod.PYTHON,
        "shuffling_queue_size": 500,
        "min_after_dequeue": 400.0,
        "vv": False,
        "v": False,
    }
    assert cli._parse_args(["t", "-q", "50"]).min_after_dequeue == 40
    assert cli._parse_args(["t", "-d", "tf", "--min-after-dequeue", "7"]).min_after_dequeue == 7
    with pytest.raises(SystemExit):
        cli._parse_args(["--help"])
    assert "by default 80% of its size" in " ".join(capsys.readouterr().out.split())


def test_memory_is_told_by_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does not tell, the most that there was is taken."""
    here = _process.memory_usage()
    monkeypatch.setattr(_process, "PROCESS", tmp_path)
    most = _process.memory_usage()

    assert 0 < here.uss <= here.rss <= here.vms
    assert most.rss >= here.rss // 2
    assert most.vms == 0


def test_loaders_are_measured_by_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    """The reader that feeds them reads nothing; Petastorm's own lacks what loaders ask for."""
    pytest.importorskip("torch")

    dummy_reader.main("cpu", "20", "4", iterations=2, batch_sizes=(2, 5))

    lines = [line.rpartition(": ")[0] or line for line in capsys.readouterr().out.splitlines()]
    sizes = [line for size in (2, 5) for line in ("Done warming up", f"Samples per second for batch {size}")]
    assert lines == ["Testing DataLoader on cpu", *sizes, "Testing BatchedDataLoader on cpu", *sizes]
