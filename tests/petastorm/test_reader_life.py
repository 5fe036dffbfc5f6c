"""The life of a reader: it ends, stops, fails and begins anew, always at once and never in silence."""

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
    """An error of a user."""


def fail(row: dict[str, Any]) -> dict[str, Any]:
    """Fail in the third row group."""
    if row["id"] == 25:
        raise OwnError("number 25")
    return row


@pytest.mark.parametrize("pool", POOLS)
def test_an_error_of_a_worker_is_raised_again_and_again(url: str, pool: str) -> None:
    """What went wrong once is raised by every further `next`, with its own type; bug: a second one never came back."""
    spec = TransformSpec(fail)

    with make_reader(url, transform_spec=spec, reader_pool_type=pool, workers_count=2, shuffle_row_groups=False) as reader:
        found = [int(next(reader).id) for _ in range(20)]
        for _ in range(3):
            with pytest.raises(OwnError, match="number 25"):
                next(reader)

    assert found == list(range(20))


@pytest.mark.parametrize("pool", POOLS)
def test_an_error_advises_nothing_that_readers_lack(url: str, pool: str) -> None:
    """Readers of Petastorm have no way to skip rows, so no note tells of one."""
    with make_reader(url, transform_spec=TransformSpec(fail), reader_pool_type=pool, workers_count=1) as reader:
        with pytest.raises(OwnError) as caught:
            list(reader)

        said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "on_bad_row" not in said


@pytest.mark.parametrize("pool", POOLS)
def test_an_error_of_a_predicate_is_raised(url: str, pool: str) -> None:
    """Whoever works tells what a predicate raised."""
    with make_reader(url, predicate=in_lambda(["id"], {}.__getitem__), reader_pool_type=pool, workers_count=1) as reader:
        for _ in range(2):
            with pytest.raises(KeyError):
                next(reader)


@pytest.mark.parametrize("pool", ["dummy", "thread"])
def test_stop_iteration_of_a_function_is_an_error(url: str, pool: str) -> None:
    """It would end the reading in silence."""

    def stop(row: dict[str, Any]) -> dict[str, Any]:
        return next(one for one in [row] if not one)

    with (
        make_reader(url, transform_spec=TransformSpec(stop), reader_pool_type=pool) as reader,
        pytest.raises(RuntimeError, match="StopIteration"),
    ):
        next(reader)


def test_a_cell_that_cannot_be_decoded_names_its_field_and_place(tmp_path: Path) -> None:
    """The field, the file, the row group and the row are told."""
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
        pytest.raises(DecodeFieldError, match=r'Decoding field "image" failed: .*row group 1, row 13') as told,
    ):
        list(reader)

    assert isinstance(told.value, RuntimeError)


@pytest.mark.parametrize("pool", POOLS)
def test_nothing_is_read_after_the_context(url: str, pool: str) -> None:
    """A reader that was left says so at once, whatever lay ready."""
    with make_reader(url, reader_pool_type=pool, workers_count=2) as reader:
        next(reader)

    for _ in range(2):
        with pytest.raises(RuntimeError, match=STOPPED):
            next(reader)


@pytest.mark.parametrize("pool", POOLS)
def test_stopping_with_a_full_queue_takes_no_time(url: str, pool: str) -> None:
    """What waits to be read is thrown away."""
    reader = make_batch_reader(url, reader_pool_type=pool, workers_count=2, num_epochs=None, decode=True)
    for _ in range(3):
        next(reader)

    reader.stop()
    reader.join()

    with pytest.raises(RuntimeError, match=STOPPED):
        next(reader)


def test_whoever_waits_is_told_when_a_reader_stops(url: str) -> None:
    """A thread that waits for a row gets the error, and does not wait for ever."""
    hold, told = threading.Event(), []

    def wait(row: dict[str, Any]) -> dict[str, Any]:
        hold.wait(30)
        return row

    reader = make_reader(url, transform_spec=TransformSpec(wait), workers_count=1)

    def take() -> None:
        try:
            next(reader)
        except RuntimeError as error:
            told.append(str(error))

    thread = threading.Thread(target=take)
    thread.start()
    reader.stop()
    hold.set()
    reader.join()
    thread.join(20)

    assert not thread.is_alive()
    assert [STOPPED in one for one in told] == [True]


def test_no_thread_is_left_when_a_reader_is_forgotten(url: str) -> None:
    """A reader that nobody holds ends its threads."""
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
    """It gives all epochs again, in other orders."""
    with make_batch_reader(url, num_epochs=2, seed=1, decode=True) as reader:
        first = tables.ids(reader)
        reader.reset()
        second = tables.ids(reader)

    assert sorted(first) == sorted(second) == sorted([*range(40), *range(40)])
    assert first != second


def test_a_reader_cannot_be_reset_in_between(url: str) -> None:
    """Unless that is asked for."""
    with make_reader(url, num_epochs=2, workers_count=2) as reader:
        next(reader)
        with pytest.raises(NotImplementedError, match="Currently do not support resetting a reader while in the middle"):
            reader.reset()
        reader.reset(anytime=True)

        assert sorted(tables.ids(reader)) == sorted([*range(40), *range(40)])


def test_an_end_stays_an_end(url: str) -> None:
    """Every `next` after the last row ends too."""
    with make_reader(url) as reader:
        list(reader)
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(reader)


def test_reading_without_end_of_nothing_is_an_error(url: str) -> None:
    """A predicate that includes no row would be asked for ever."""
    never = in_lambda(["id"], lambda number: number < 0)

    with (
        make_reader(url, predicate=never, num_epochs=None, workers_count=2) as reader,
        pytest.raises(NoDataAvailableError, match="A whole epoch went by without a row"),
    ):
        next(reader)
    with make_reader(url, predicate=never, num_epochs=2) as reader:
        assert list(reader) == []


def test_a_reader_closes_without_a_word(url: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is printed; what Petastorm prints is logged for those who debug."""
    with caplog.at_level(logging.DEBUG, "penstock.petastorm.reader"), make_reader(url, schema_fields=["id"]) as reader:
        next(reader)

    assert capsys.readouterr().out == ""
    assert "Cache cleanup complete." in caplog.messages


def test_a_cache_that_is_cleaned_up_on_request_says_so(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As Petastorm does, also where there is no cache."""
    with make_reader(url, schema_fields=["id"]) as reader:
        next(reader)
        reader.cleanup_cache()

    assert capsys.readouterr().out == "Cache cleanup complete.\n"


@pytest.mark.parametrize("copying", [True, False])
def test_diagnostics_repeat_how_buffers_are_copied(url: str, copying: bool) -> None:  # noqa: FBT001 - a parameter
    """As the argument says, by a reader and by a pool alone."""
    with make_reader(url, reader_pool_type="process", workers_count=1, zmq_copy_buffers=copying) as reader:
        told = reader.diagnostics["zmq_copy_buffers"]

    assert told is copying
    assert ProcessPool(1, zmq_copy_buffers=copying).diagnostics["zmq_copy_buffers"] is copying


@pytest.mark.parametrize("kind", [make_reader, make_batch_reader])
def test_deprecated_arguments_are_warned_of_in_the_words_of_petastorm(url: str, kind: Any) -> None:
    """Users match these texts to silence them."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        kind(url, shard_seed=3, reader_pool_type="dummy").stop()
        if kind is make_reader:
            make_reader(url, pyarrow_serialize=True, reader_pool_type="process", workers_count=1).stop()
    texts = {str(one.message) for one in told if "deprecated" in str(one.message)}

    assert (
        "shard_seed was deprecated and will be removed in future versions. Use seed to apply randomization effects on "
        "sharding row groups."
    ) in texts
    serialized = (
        "pyarrow_serializer was deprecated and will be removed in future versions. The argument no longer has any effect."
    )
    assert (serialized in texts) is (kind is make_reader)
    assert {one.filename for one in told if "deprecated" in str(one.message)} == {__file__}


def test_a_process_that_ends_is_told_of(url: str) -> None:
    """Whoever waits for its rows is told, by every further `next` too."""

    def end(row: dict[str, Any]) -> dict[str, Any]:
        import os

        os._exit(3 if row else 4)

    with make_reader(url, transform_spec=TransformSpec(end), reader_pool_type="process", workers_count=1) as reader:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="ended with exit code 3 during map make_reader"):
                next(reader)


def test_a_reader_does_not_go_on_after_a_fork(url: str) -> None:
    """Its threads are in the process that made it: whoever asks elsewhere is told, and does not wait."""
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
