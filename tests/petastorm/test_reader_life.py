"""The life cycle of a reader: it ends, stops, fails and resets without delay, and reports each error."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import petastorm_tables as tables
import pytest

from penstock.petastorm import NoDataAvailableError, TransformSpec, make_batch_reader, make_reader
from penstock.petastorm.predicates import in_lambda
from penstock.petastorm.utils import DecodeFieldError
from penstock.petastorm.workers_pool.process_pool import ProcessPool

POOLS = ("dummy", "thread", "process")
STOPPED = "Trying to read a sample after a reader created by make_reader/make_batch_reader has stopped"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of four row groups of ten rows."""
    return tables.small(tmp_path_factory.mktemp("small") / "t")


class OwnError(Exception):
    """A user's error."""


def fail(row: dict[str, Any]) -> dict[str, Any]:
    """Fail in the third row group."""
    if row["id"] == 25:
        raise OwnError("number 25")
    return row


@pytest.mark.parametrize("pool", POOLS)
def test_an_error_of_a_worker_is_raised_by_each_next(url: str, pool: str) -> None:
    """Each further `next` raises the error, with its own type. In Petastorm the second one never returned."""
    spec = TransformSpec(fail)

    with make_reader(url, transform_spec=spec, reader_pool_type=pool, workers_count=2, shuffle_row_groups=False) as reader:
        found = [int(next(reader).id) for _ in range(20)]
        for _ in range(3):
            with pytest.raises(OwnError, match="number 25"):
                next(reader)

    assert found == list(range(20))


@pytest.mark.parametrize("pool", POOLS)
def test_an_error_does_not_advise_on_bad_row(url: str, pool: str) -> None:
    """Petastorm's readers cannot skip rows, so no note of an error mentions `on_bad_row`."""
    with make_reader(url, transform_spec=TransformSpec(fail), reader_pool_type=pool, workers_count=1) as reader:
        with pytest.raises(OwnError) as caught:
            list(reader)

        said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "on_bad_row" not in said


@pytest.mark.parametrize("pool", POOLS)
def test_an_error_of_a_predicate_is_raised(url: str, pool: str) -> None:
    """The error of a predicate is raised by each `next`, with any pool."""
    with make_reader(url, predicate=in_lambda(["id"], {}.__getitem__), reader_pool_type=pool, workers_count=1) as reader:
        for _ in range(2):
            with pytest.raises(KeyError):
                next(reader)


@pytest.mark.parametrize("pool", ["dummy", "thread"])
def test_stop_iteration_of_a_function_is_an_error(url: str, pool: str) -> None:
    """A StopIteration of a transform function raises RuntimeError, since it would silently end the reading."""

    def stop(row: dict[str, Any]) -> dict[str, Any]:
        return next(one for one in [row] if not one)

    with (
        make_reader(url, transform_spec=TransformSpec(stop), reader_pool_type=pool) as reader,
        pytest.raises(RuntimeError, match="StopIteration"),
    ):
        next(reader)


def test_a_cell_that_cannot_be_decoded_names_its_field_and_place(tmp_path: Path) -> None:
    """A cell that cannot be decoded raises an error that names the field, the row group and the row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    url = tables.small(tmp_path / "t")
    (file,) = (tmp_path / "t").rglob("*.parquet")
    table = pq.read_table(file)
    cells = table.column("image").to_pylist()
    cells[13] = b"no image"
    place = table.schema.get_field_index("image")
    pq.write_table(table.set_column(place, "image", pa.array(cells)), file, row_group_size=10)

    with (
        make_reader(url, shuffle_row_groups=False) as reader,
        pytest.raises(DecodeFieldError, match=r'Decoding field "image" failed: .*row group 1, row 13') as reported,
    ):
        list(reader)

    assert isinstance(reported.value, RuntimeError)


@pytest.mark.parametrize("pool", POOLS)
def test_nothing_is_read_after_the_context(url: str, pool: str) -> None:
    """After its context, a reader raises RuntimeError at once, whatever was read ahead."""
    with make_reader(url, reader_pool_type=pool, workers_count=2) as reader:
        next(reader)

    for _ in range(2):
        with pytest.raises(RuntimeError, match=STOPPED):
            next(reader)


@pytest.mark.parametrize("pool", POOLS)
def test_a_reader_with_a_full_queue_can_be_stopped(url: str, pool: str) -> None:
    """Stopping a reader discards the items in its queue."""
    reader = make_batch_reader(url, reader_pool_type=pool, workers_count=2, num_epochs=None, decode=True)
    for _ in range(3):
        next(reader)

    reader.stop()
    reader.join()

    with pytest.raises(RuntimeError, match=STOPPED):
        next(reader)


def test_stopping_a_reader_raises_in_a_thread_that_waits(url: str) -> None:
    """A thread that waits for a row gets the error, and does not wait for ever."""
    proceed, reported = threading.Event(), []

    def wait(row: dict[str, Any]) -> dict[str, Any]:
        proceed.wait(30)
        return row

    reader = make_reader(url, transform_spec=TransformSpec(wait), workers_count=1)

    def take() -> None:
        try:
            next(reader)
        except RuntimeError as error:
            reported.append(str(error))

    thread = threading.Thread(target=take)
    thread.start()
    reader.stop()
    proceed.set()
    reader.join()
    thread.join(20)

    assert not thread.is_alive()
    assert [STOPPED in one for one in reported] == [True]


def test_a_reader_without_references_ends_its_threads(url: str) -> None:
    """A reader that is garbage collected ends its threads."""
    before = set(threading.enumerate())
    reader = make_reader(url, workers_count=4, num_epochs=None)
    next(reader)
    mine = set(threading.enumerate()) - before

    del reader
    gc.collect()
    for thread in mine:
        thread.join(20)

    assert mine
    assert not any(thread.is_alive() for thread in mine)


def test_a_reader_can_be_reset_when_all_was_read(url: str) -> None:
    """A reset after the last row repeats all epochs, in other orders."""
    with make_batch_reader(url, num_epochs=2, seed=1, decode=True) as reader:
        first = tables.ids(reader)
        reader.reset()
        second = tables.ids(reader)

    assert sorted(first) == sorted(second) == sorted([*range(40), *range(40)])
    assert first != second


def test_a_reset_before_the_last_row_raises(url: str) -> None:
    """A reset before the last row raises NotImplementedError, unless `anytime=True`."""
    with make_reader(url, num_epochs=2, workers_count=2) as reader:
        next(reader)
        with pytest.raises(NotImplementedError, match="Currently do not support resetting a reader while in the middle"):
            reader.reset()
        reader.reset(anytime=True)

        assert sorted(tables.ids(reader)) == sorted([*range(40), *range(40)])


def test_each_next_after_the_end_raises_stop_iteration(url: str) -> None:
    """Each `next` after the last row raises StopIteration."""
    with make_reader(url) as reader:
        list(reader)
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(reader)


def test_endless_epochs_without_rows_raise(url: str) -> None:
    """With `num_epochs=None`, an epoch without rows raises NoDataAvailableError. Finite epochs without rows just end."""
    never = in_lambda(["id"], lambda number: number < 0)

    with (
        make_reader(url, predicate=never, num_epochs=None, workers_count=2) as reader,
        pytest.raises(NoDataAvailableError, match="A whole epoch went by without a row"),
    ):
        next(reader)
    with make_reader(url, predicate=never, num_epochs=2) as reader:
        assert list(reader) == []


def test_closing_a_reader_prints_nothing(
    url: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Closing a reader prints nothing. The text that Petastorm prints goes to the debug log."""
    with caplog.at_level(logging.DEBUG, "penstock.petastorm.reader"), make_reader(url, schema_fields=["id"]) as reader:
        next(reader)

    assert capsys.readouterr().out == ""
    assert "Cache cleanup complete." in caplog.messages


def test_cleanup_cache_prints_a_message(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`cleanup_cache` prints Petastorm's message, also without a cache."""
    with make_reader(url, schema_fields=["id"]) as reader:
        next(reader)
        reader.cleanup_cache()

    assert capsys.readouterr().out == "Cache cleanup complete.\n"


@pytest.mark.parametrize("copying", [True, False])
def test_diagnostics_contain_zmq_copy_buffers(url: str, copying: bool) -> None:  # noqa: FBT001 - a parameter
    """The diagnostics of a reader and of a pool contain the argument `zmq_copy_buffers`."""
    with make_reader(url, reader_pool_type="process", workers_count=1, zmq_copy_buffers=copying) as reader:
        reported = reader.diagnostics["zmq_copy_buffers"]

    assert reported is copying
    assert ProcessPool(1, zmq_copy_buffers=copying).diagnostics["zmq_copy_buffers"] is copying


@pytest.mark.parametrize("kind", [make_reader, make_batch_reader])
def test_deprecated_arguments_warn_with_petastorms_texts(url: str, kind: Any) -> None:
    """Deprecated arguments warn with Petastorm's texts, which users match to silence the warnings."""
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        kind(url, shard_seed=3, reader_pool_type="dummy").stop()
        if kind is make_reader:
            make_reader(url, pyarrow_serialize=True, reader_pool_type="process", workers_count=1).stop()
    texts = {str(one.message) for one in reported if "deprecated" in str(one.message)}

    assert (
        "shard_seed was deprecated and will be removed in future versions. Use seed to apply randomization effects on "
        "sharding row groups."
    ) in texts
    serialized = (
        "pyarrow_serializer was deprecated and will be removed in future versions. The argument no longer has any effect."
    )
    assert (serialized in texts) is (kind is make_reader)
    assert {one.filename for one in reported if "deprecated" in str(one.message)} == {__file__}


def test_a_worker_process_that_ends_is_reported(url: str) -> None:
    """If a worker process ends, each `next` raises RuntimeError with its exit code."""

    def end(row: dict[str, Any]) -> dict[str, Any]:
        import os

        os._exit(3 if row else 4)

    with make_reader(url, transform_spec=TransformSpec(end), reader_pool_type="process", workers_count=1) as reader:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="ended with exit code 3 during map make_reader"):
                next(reader)


def test_a_reader_raises_after_a_fork(url: str) -> None:
    """Using a reader in a forked process raises an error instead of waiting for threads of the parent."""
    code = (
        "import os, sys\n"
        "from penstock.petastorm import make_reader\n"
        "reader = make_reader(sys.argv[1], schema_fields=['id'])\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        list(reader)\n"
        "    except RuntimeError as error:\n"
        "        print(str(error).split(',')[0].rstrip('0123456789'), flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print(len(list(reader)))\n"
    )

    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert found.stdout == "This reader was made in process \n40\n"
