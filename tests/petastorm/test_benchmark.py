"""`petastorm.benchmark`: measures the speed of readers and loaders."""

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
def test_throughput_is_measured_in_rows_per_second(tmp_path: Path, pool: WorkerPoolType) -> None:
    """The result has time, rate, memory and CPU use. The reader repeats the dataset if it has too few rows."""
    url = tables.small(tmp_path / "t")

    found = reader_throughput(url, ["id", "name"], pool_type=pool, loaders_count=1, spawn_new_process=False, **FEW)

    assert found._fields == ("time_mean", "samples_per_second", "memory_info", "cpu")
    assert found.samples_per_second == pytest.approx(1 / found.time_mean)
    assert found.time_mean > 0
    assert found.memory_info.rss > 10 << 20
    assert found.cpu >= 0


def test_a_new_process_uses_less_memory(tmp_path: Path) -> None:
    """A measurement in a new process does not count the memory of the calling process."""
    url = tables.small(tmp_path / "t")
    ballast = bytearray(b"x" * (300 << 20))

    separate = reader_throughput(url, **FEW)
    current = reader_throughput(url, spawn_new_process=False, **FEW)

    assert separate.memory_info.rss + (100 << 20) < current.memory_info.rss
    assert len(ballast) == 300 << 20


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"field_regex": ["zzz"]}, r"No field of .* matches \['zzz'\]"),
        ({"measure_cycles_count": 0}, "30 rows to warm up and 0 to measure were asked for"),
        ({"warmup_cycles_count": -5}, "-5 rows to warm up"),
    ],
)
def test_arguments_that_measure_nothing_raise(tmp_path: Path, arguments: dict[str, Any], text: str) -> None:
    """A pattern without a matching field and invalid numbers of rows raise ValueError."""
    url = tables.small(tmp_path / "t")

    with pytest.raises(ValueError, match=text):
        reader_throughput(url, spawn_new_process=False, **{**FEW, **arguments})


def test_reader_extra_args_are_passed_to_the_reader(tmp_path: Path) -> None:
    """`reader_extra_args` are passed to `make_reader`, including `schema_fields`."""
    url = tables.small(tmp_path / "t")

    with pytest.raises(RuntimeError, match=r"No fields matching the criteria '\['nope'\]'"):
        reader_throughput(url, reader_extra_args={"schema_fields": ["nope"]}, spawn_new_process=False, **FEW)


def test_the_fields_and_the_result_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log contains the fields that are read, then the result."""
    url = tables.small(tmp_path / "t")

    with caplog.at_level(logging.INFO):
        found = reader_throughput(url, ["i.*"], spawn_new_process=False, **FEW)

    assert "name='id'" in caplog.messages[0]
    assert "name='name'" not in caplog.messages[0]
    assert str(found) in caplog.messages[1]


def test_progress_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Each report period logs the rate and the diagnostics of the reader."""
    with caplog.at_level(logging.DEBUG):
        seconds = _time_multiple_iterations(3, lambda: None, lambda: {"queue": 1}, report_period=-1.0)

    assert seconds > 0
    assert len(caplog.messages) == 3
    assert re.fullmatch(r"[\d.]+ \(mean: [\d.]+\) iterations/sec\. \{'queue': 1\}", caplog.messages[0])


def test_a_function_can_replace_reading() -> None:
    """`do_work_func` is called for each row of the warm-up and of the measurement. The reader is then not read."""
    rows = iter(range(100))
    reader = iter(range(100))

    with_function = _time_warmup_and_work(reader, 2, 3, lambda: next(rows))
    _time_warmup_and_work(reader, 6, 7, do_work_func=lambda: next(rows))
    _time_warmup_and_work(reader, 1, 3)

    assert next(rows) == 2 + 3 + 6 + 7
    assert next(reader) == 1 + 3
    assert with_function.time_mean > 0


def test_the_tensorflow_method_raises(tmp_path: Path) -> None:
    """The TensorFlow read method raises MissingExtraError that names the extra to install."""
    url = tables.small(tmp_path / "t")

    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[tensorflow\]'"):
        reader_throughput(url, read_method=ReadMethod.TF, spawn_new_process=False, **FEW)


def test_the_command_prints_the_line_of_petastorm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints one line with the rate, the memory and the CPU use, as Petastorm does."""
    url = tables.small(tmp_path / "t")

    cli._main([url, "--field-regex", "id", "-w", "1", "-p", "dummy", "-m", "10", "-n", "20"])

    line = capsys.readouterr().out.splitlines()[-1]
    number = r"\d+\.\d\d"
    assert re.fullmatch(rf"Average sample read rate: {number} samples/sec; RAM {number} MB \(rss\); CPU {number}%", line)


def test_the_command_has_the_defaults_of_petastorm(capsys: pytest.CaptureFixture[str]) -> None:
    """The command has Petastorm's options, short options and defaults."""
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


def test_memory_usage_falls_back_to_the_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `/proc`, the memory usage is the peak of the process."""
    current = _process.memory_usage()
    monkeypatch.setattr(_process, "PROCESS", tmp_path)
    peak = _process.memory_usage()

    assert 0 < current.uss <= current.rss <= current.vms
    assert peak.rss >= current.rss // 2
    assert peak.vms == 0


def test_loaders_are_measured_without_data(capsys: pytest.CaptureFixture[str]) -> None:
    """`dummy_reader` measures loaders over a reader that reads nothing. Petastorm's own reader lacks attributes for it."""
    pytest.importorskip("torch")

    dummy_reader.main("cpu", "20", "4", iterations=2, batch_sizes=(2, 5))

    lines = [line.rpartition(": ")[0] or line for line in capsys.readouterr().out.splitlines()]
    sizes = [line for size in (2, 5) for line in ("Done warming up", f"Samples per second for batch {size}")]
    assert lines == ["Testing DataLoader on cpu", *sizes, "Testing BatchedDataLoader on cpu", *sizes]
