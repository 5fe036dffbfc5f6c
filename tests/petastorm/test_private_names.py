"""Names with a leading underscore that scripts and tests for Petastorm import."""

from __future__ import annotations

import io
import queue
from contextlib import redirect_stdout
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import petastorm_tables as tables
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MissingExtraError
from penstock.petastorm import codecs, make_batch_reader, make_reader, predicates, tf_utils, unischema
from penstock.petastorm.arrow_reader_worker import ArrowReaderWorker
from penstock.petastorm.benchmark.throughput import _time_warmup_and_work
from penstock.petastorm.hdfs.namenode import HdfsNamenodeResolver
from penstock.petastorm.local_disk_cache import LocalDiskCache
from penstock.petastorm.ngram import NGram
from penstock.petastorm.py_dict_reader_worker import PyDictReaderWorker
from penstock.petastorm.reader_impl.shuffling_buffer import RandomShufflingBuffer
from penstock.petastorm.tools import spark_session_cli
from penstock.petastorm.unischema import Unischema, UnischemaField
from penstock.petastorm.workers_pool.ventilator import ConcurrentVentilator

SECOND = 1_000_000_000


class Sample(NamedTuple):
    """A row of one field."""

    x: Any


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of four row groups of ten rows."""
    return tables.small(tmp_path_factory.mktemp("small") / "t")


def sanitized(value: Any) -> Any:
    """Return a value as it is passed to TensorFlow."""
    return tf_utils._sanitize_field_tf_types(Sample(value)).x


def test_whole_names_are_matched() -> None:
    """`_fullmatch` matches whole names only."""
    assert unischema._fullmatch("a.*", "abc")
    assert unischema._fullmatch("", "")
    assert not unischema._fullmatch("ab", "abc")
    assert not unischema._fullmatch("bc", "abc")


def test_rows_may_have_more_than_255_fields() -> None:
    """`_new_gt_255_compatible_namedtuple` makes a row type with any number of fields."""
    names = [f"f{number}" for number in range(300)]

    row: Any = unischema._new_gt_255_compatible_namedtuple("Wide", names)(*range(300))

    assert type(row).__name__ == "Wide"
    assert (row._fields, row.f299) == (tuple(names), 299)


@pytest.mark.torch
@pytest.mark.parametrize(("capacity", "row_count"), [(0, 0), (1, 1), (15, 15), (40, 40), (100, 40)])
@pytest.mark.parametrize("make", [make_reader, make_batch_reader])
@pytest.mark.filterwarnings("ignore:Please use make_reader:UserWarning")
def test_rows_are_loaded_up_to_a_capacity(url: str, make: Any, capacity: int, row_count: int) -> None:
    """`_load_rows_into_mem` returns names and columns of at most `capacity` rows, and stops the reader."""
    torch = pytest.importorskip("torch")
    from penstock.petastorm.pytorch import _load_rows_into_mem

    reader = make(url, schema_fields=["id"], shuffle_row_groups=False, num_epochs=None if capacity <= 40 else 1)
    names, columns = _load_rows_into_mem(reader, torch.as_tensor, capacity)

    assert reader.stopped
    assert list(names) == ["id"]
    assert columns[0].tolist() == list(range(row_count))


@pytest.mark.torch
def test_a_reader_is_stopped_when_loading_fails(url: str) -> None:
    """`_load_rows_into_mem` stops the reader if it fails."""
    pytest.importorskip("torch")
    from penstock.petastorm.pytorch import _load_rows_into_mem

    def fail(values: Any) -> Any:
        del values
        raise ArithmeticError("no tensor")

    reader = make_reader(url, schema_fields=["id"])
    with pytest.raises(ArithmeticError, match="no tensor"):
        _load_rows_into_mem(reader, fail, 3)

    assert reader.stopped


@pytest.mark.parametrize(
    ("cell", "shape", "message"),
    [
        ("text", (2, 3), "field x must be numpy array type, and a cell is str"),
        (np.zeros((2, 5)), (2, 3), r"field x must be the shape \(2, 3\), and a cell has \(2, 5\)"),
        (np.zeros((2, 3), order="F"), (2, 3), "field x error: only support row major multi-dimensional array"),
        (np.zeros((2, 3)), (2, None), r"All dimensions of a shape: \(2, None\) in: x field must be constant"),
        (np.zeros(3), (None,), r"All dimensions of a shape: \(None,\) in: x field must be constant"),
    ],
)
def test_a_cell_of_another_shape_raises(cell: Any, shape: Any, message: str) -> None:
    """`ArrowReaderWorker._check_shape_and_ravel` raises ValueError if a cell does not have the shape of its field."""
    with pytest.raises(ValueError, match=message):
        ArrowReaderWorker._check_shape_and_ravel(cell, UnischemaField("x", np.float32, shape))


@pytest.mark.parametrize("shape", [(2, 3), (6,), (1, 2, 3)])
def test_a_cell_of_the_right_shape_is_flattened(shape: tuple[int, ...]) -> None:
    """`ArrowReaderWorker._check_shape_and_ravel` returns the values in their order."""
    cell = np.arange(6, dtype=np.float32).reshape(shape)

    assert ArrowReaderWorker._check_shape_and_ravel(cell, UnischemaField("x", np.float32, shape)).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["_load_rows", "_load_rows_with_predicate", "_read_with_shuffle_row_drop"])
@pytest.mark.parametrize("kind", [ArrowReaderWorker, PyDictReaderWorker])
def test_load_methods_of_workers_raise(kind: Any, name: str) -> None:
    """The engine reads row groups, so the methods of a worker raise NotImplementedError that names what to use."""
    with pytest.raises(NotImplementedError, match=rf"{kind.__name__} works on nothing here\. Use make_reader or make_batch"):
        getattr(kind(0, print, None), name)(None, None, (0, 1))


def test_a_reader_has_its_pool(url: str) -> None:
    """`Reader._workers_pool` is the pool of the reader, with its arguments."""
    with make_reader(url, workers_count=3, results_queue_size=42) as reader:
        pool = reader._workers_pool

    assert (type(pool).__name__, pool.workers_count, pool._results_queue_size) == ("ThreadPool", 3, 42)


def test_a_disk_cache_has_a_volume(tmp_path: Path) -> None:
    """`LocalDiskCache._cache.volume()` is the number of bytes in the cache."""
    cache = LocalDiskCache(str(tmp_path / "c"), 2**20, 4)
    cache.get("key", lambda: "value")

    assert cache._cache.volume() == cache.size() > 0


def test_a_disk_cache_that_cannot_be_closed_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while closing is printed as in Petastorm, and the directory is deleted."""
    cache = LocalDiskCache(str(tmp_path / "c"), 2**20, 4)

    def fail() -> None:
        raise OSError("busy")

    monkeypatch.setattr(cache._cache, "close", fail)
    with redirect_stdout(io.StringIO()) as printed:
        cache.cleanup()

    assert printed.getvalue() == "Error closing cache: busy\n"
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array([0, 2**16 - 1], np.uint16), np.array([0, 2**16 - 1], np.int32)),
        (np.array([0, 2**32 - 1], np.uint32), np.array([0, 2**32 - 1], np.int64)),
        (np.array([-1, 1], np.int8), np.array([-1, 1], np.int8)),
        (np.array([date(1970, 1, 1), date(1970, 1, 2)], object), np.array([0, 86_400 * SECOND])),
        (np.array([datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC).replace(tzinfo=None)], object), np.array([SECOND + 5000])),
        (np.array(["1969-12-31T23:59:59"], "datetime64[s]"), np.array([-SECOND])),
        (np.array(["1970-01-01T00:00:00.000000001"], "datetime64[ns]"), np.array([1])),
        (np.zeros((0,), "datetime64[us]"), np.zeros(0, np.int64)),
        (np.zeros((0,), object), np.zeros(0, object)),
    ],
)
def test_arrays_are_converted_for_tensorflow(value: Any, expected: Any) -> None:
    """Unsigned integers become wider integers, and dates and times become nanoseconds since 1970."""
    found = sanitized(value)

    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


def test_text_becomes_lists_and_decimals_text() -> None:
    """Arrays of text or bytes become lists unless they are empty. Decimals become text without trailing zeros."""
    assert sanitized(np.array([["a", "b"]])) == [["a", "b"]]
    assert sanitized(np.array([b"a"])) == [b"a"]
    assert sanitized(np.array([], np.str_)).shape == (0,)
    assert sanitized(Decimal("123.4500")) == "123.45"
    assert sanitized("text") == "text"


@pytest.mark.parametrize(
    "value", [None, np.array([date(1970, 1, 1), None], object), np.array(["1970-01-01", "NaT"], "datetime64[D]")]
)
def test_nulls_raise(value: Any) -> None:
    """A null raises RuntimeError, since TensorFlow has no nulls."""
    with pytest.raises(RuntimeError, match=r'Encountered "x"=None\. Tensorflow does not support None values'):
        sanitized(value)


@given(st.datetimes())
def test_timestamps_are_exact_or_raise(moment: datetime) -> None:
    """A timestamp outside the range of 64-bit nanoseconds raises ValueError that names the field."""
    exact = round((moment - datetime(1970, 1, 1)) / (datetime(1970, 1, 1, 0, 0, 1) - datetime(1970, 1, 1)))  # noqa: DTZ001
    values = np.array([moment], "datetime64[us]")

    if abs(exact) < 2**63 // SECOND:
        assert sanitized(values)[0] == values.astype(np.int64)[0] * 1000
    elif abs(exact) > 2**63 // SECOND + 1:
        with pytest.raises(ValueError, match=r"field x has moments outside 1677-09-21 \.\. 2262-04-11"):
            sanitized(values)


def test_windows_are_flat_tuples_and_become_windows_again(tmp_path: Path) -> None:
    """`_ngrams_generator` makes flat tuples with offsets from 0. `_unflatten_and_set_shape` restores windows and offsets."""
    url = tables.small(tmp_path / "t")
    ngram = NGram({-1: ["id"], 2: ["id", "image"]}, delta_threshold=10, timestamp_field="id")

    class Tensor:
        shape: Any = None

        def get_shape(self) -> Any:
            return SimpleNamespace(dims=self.shape)

        def set_shape(self, shape: Any) -> None:
            self.shape = shape

    with make_reader(url, schema_fields=ngram, shuffle_row_groups=False) as reader:
        flat = next(iter(tf_utils._ngrams_generator(reader)))
        again = tf_utils._unflatten_and_set_shape(reader.schema, ngram, [Tensor() for _ in flat])

        assert flat._fields == ("id_0", "id_3", "image_3")
        assert (flat.id_0, flat.id_3) == (0, 3)
        assert list(again) == [-1, 0, 1, 2]
        assert (again[-1].id.shape, again[2].image.shape) == ((), reader.schema.image.shape)
        assert again[0] == ()


def test_a_second_generator_of_windows_resets_the_reader(tmp_path: Path) -> None:
    """A second generator resets the reader and gives Petastorm's warning."""
    url = tables.small(tmp_path / "t")
    ngram = NGram({0: ["id"], 1: ["id"]}, delta_threshold=10, timestamp_field="id")

    with make_reader(url, schema_fields=ngram, shuffle_row_groups=False) as reader:
        first = list(tf_utils._ngrams_generator(reader))
        with pytest.warns(UserWarning, match="Running multiple iterations over make_petastorm_dataset is not recommend"):
            second = list(tf_utils._ngrams_generator(reader))

    assert second == first


@pytest.mark.parametrize("kind", [np.uint64, np.float16, object])
def test_types_without_a_tensorflow_type_raise(kind: Any) -> None:
    """`_numpy_to_tf_dtypes` raises ValueError for types without a TensorFlow type, also without TensorFlow."""
    with pytest.raises(ValueError, match=r"Unknown mapping of numpy .* to tensorflow dtype"):
        tf_utils._numpy_to_tf_dtypes(kind)


@pytest.mark.parametrize(
    "call",
    [
        lambda: tf_utils._numpy_to_tf_dtypes(np.int32),
        lambda: tf_utils._schema_to_tf_dtypes(Unischema("S", [UnischemaField("x", np.int32, ())])),
        lambda: tf_utils._schema_to_tf_dtypes_ngram(
            Unischema("S", [UnischemaField("x", np.int32, ())]), NGram({0: [UnischemaField("x", np.int32, ())]}, 1, "x")
        ),
    ],
)
def test_functions_that_need_tensorflow_raise_when_called(call: Any) -> None:
    """Functions that need TensorFlow can be imported without it. Calling them raises MissingExtraError."""
    with pytest.raises(MissingExtraError, match=r"petastorm\.tf_utils\._numpy_to_tf_dtypes works with TensorFlow"):
        call()


def test_text_for_tensorflow_warns() -> None:
    """Petastorm's warning says that TensorFlow converts text to bytes."""
    with (
        pytest.warns(UnicodeWarning, match="Tensorflow will convert all unicode strings back to bytes type"),
        pytest.raises(MissingExtraError),
    ):
        tf_utils._numpy_to_tf_dtypes(np.str_)


def test_a_ventilator_counts_its_items() -> None:
    """`_ventilated_items_count` and `_processed_items_count` count the items of all iterations."""
    taken: queue.SimpleQueue[int] = queue.SimpleQueue()
    items = [{"item": number} for number in range(3)]
    ventilator = ConcurrentVentilator(taken.put, items, iterations=2, max_ventilation_queue_size=2)
    ventilator.start()
    found = []
    for _ in range(6):
        found.append(taken.get(timeout=30))
        ventilator.processed_item()
    ventilator.stop()

    assert found == [0, 1, 2, 0, 1, 2]
    assert (ventilator._ventilated_items_count, ventilator._processed_items_count) == (6, 6)


@pytest.mark.parametrize("variable", ["HADOOP_HOME", "HADOOP_PREFIX", "HADOOP_INSTALL"])
def test_a_resolver_stores_where_it_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """`_hadoop_env` and `_hadoop_path` of a resolver say where its settings come from."""
    for name in ("HADOOP_HOME", "HADOOP_PREFIX", "HADOOP_INSTALL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    (tmp_path / "etc" / "hadoop").mkdir(parents=True)
    for name in ("hdfs-site.xml", "core-site.xml"):
        (tmp_path / "etc" / "hadoop" / name).write_text("<configuration></configuration>")

    resolver = HdfsNamenodeResolver()

    assert (resolver._hadoop_env, resolver._hadoop_path) == (variable, str(tmp_path))


@pytest.mark.parametrize(
    ("one", "two", "fits"),
    [((), (), True), ((1, 2), (1, None), True), ((1, 0), (1, 5), True), ((1, 2), (1, 3), False), ((1, 2), (1,), False)],
)
def test_shapes_with_variable_sizes_are_compared(one: Any, two: Any, *, fits: bool) -> None:
    """`codecs._is_compliant_shape` accepts any size for None and 0, in either order of the shapes."""
    assert (codecs._is_compliant_shape(one, two), codecs._is_compliant_shape(two, one)) == (fits, fits)


def test_the_bucket_of_a_text_comes_from_its_md5() -> None:
    """`predicates._string_to_bucket` uses the MD5 of a text, as `in_pseudorandom_split` does."""
    assert predicates._string_to_bucket("abc", 1000) == 0x900150983CD24FB0D6963F7D28E17F72 % 1000


def test_settings_of_spark_become_a_dict() -> None:
    """`_cli_spark_session_config_to_dict` accepts pairs and None."""
    assert spark_session_cli._cli_spark_session_config_to_dict(None) == {}
    assert spark_session_cli._cli_spark_session_config_to_dict(["a=1", "b="]) == {"a": "1", "b": ""}


def test_dates_of_an_array_become_nanoseconds() -> None:
    """`_date_to_nsec_from_epoch_vectorized` converts dates and keeps the shape."""
    dates = np.array([[date(1970, 1, 1), date(1970, 1, 2)]], object)

    assert tf_utils._date_to_nsec_from_epoch_vectorized(dates).tolist() == [[0, 86_400 * SECOND]]


def test_private_attributes_of_windows_and_buffers() -> None:
    """`NGram._timestamp_field` and `RandomShufflingBuffer._done_adding` exist as in Petastorm."""
    field = UnischemaField("id", np.int64, ())
    buffer = RandomShufflingBuffer(5, 3)
    before = buffer._done_adding
    buffer.finish()

    assert NGram({0: [field]}, 1, field)._timestamp_field == field
    assert (before, buffer._done_adding) == (False, True)


def test_a_benchmark_calls_a_function_for_each_row(url: str) -> None:
    """The fourth argument of `_time_warmup_and_work` is a function that is called for each row."""
    done = []
    with make_reader(url, num_epochs=None) as reader:
        found = _time_warmup_and_work(reader, 2, 3, lambda: done.append(next(reader)))

    assert len(done) == 5
    assert found.time_mean >= 0
