"""`make_batch_reader`: how columns of plain Parquet become batches, one per row group or of one size."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import petastorm_tables as tables
import pyarrow as pa
import pytest

from penstock.petastorm import TransformSpec, make_batch_reader
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import in_lambda, in_set
from penstock.petastorm.unischema import UnischemaField

POOLS = ("dummy", "thread", "process")

COLUMNS = {
    "id": list(range(40)),
    "x": pa.array([n / 2 for n in range(40)], pa.float32()),
    "word": [f"word {n}" for n in range(40)],
    "vector": pa.array([[n, n + 1] for n in range(40)], pa.list_(pa.int16())),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Plain Parquet of four row groups of ten rows."""
    return tables.plain(tmp_path_factory.mktemp("plain") / "t", COLUMNS)


def first(url: str, **options: Any) -> Any:
    """Return the first batch in stored order."""
    with make_batch_reader(url, **{"reader_pool_type": "dummy", "shuffle_row_groups": False, **options}) as reader:
        return next(reader)


def column(tmp_path: Path, values: Any, **options: Any) -> Any:
    """Write a column, and return it as the first batch has it."""
    return first(tables.plain(tmp_path / "t", {"a": values}), **options).a


@pytest.mark.parametrize("pool", POOLS)
def test_a_batch_is_a_row_group(url: str, pool: str) -> None:
    """A batch is a row group. Its columns are writable arrays: numbers, text of fixed width, and matrices of lists."""
    with make_batch_reader(url, shuffle_row_groups=False, reader_pool_type=pool, workers_count=2) as reader:
        batches = list(reader)

    assert [len(batch.id) for batch in batches] == [10, 10, 10, 10]
    batch = batches[1]
    assert type(batch).__name__ == "inferred_schema_view"
    assert batch._fields == ("id", "x", "word", "vector")
    assert (batch.id.dtype, batch.x.dtype, batch.word.dtype) == (np.int64, np.float32, np.dtype("<U7"))
    assert batch.vector.tolist() == [[n, n + 1] for n in range(10, 20)]
    assert batch.vector.dtype == np.int16
    assert all(values.flags.writeable for values in batch)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (pa.array([1.5, None]), np.float64, [1.5, "nan"]),
        (pa.array([True, False]), np.bool_, [True, False]),
        (pa.array([True, None]), object, [True, None]),
        (pa.array([b"a", None]), object, [b"a", None]),
        (pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)), object, [Decimal("1.50"), None]),
        (pa.array([dt.date(2024, 1, 2), None]), object, [dt.date(2024, 1, 2), None]),
        (pa.array(["é", "long text " * 10]), np.dtype("<U100"), ["é", "long text " * 10]),
        (pa.array(["a\0", "b"]), np.dtype("<U2"), ["a", "b"]),
        (pa.array([b"abc", b"def"], pa.binary(3)), object, [b"abc", b"def"]),
    ],
)
def test_arrow_types_become_numpy_types(tmp_path: Path, values: Any, dtype: Any, expected: list[Any]) -> None:
    """Each Arrow type becomes one NumPy type."""
    found = column(tmp_path, values)

    assert found.dtype == dtype
    assert ["nan" if isinstance(one, float) and np.isnan(one) else one for one in found.tolist()] == expected


def test_timestamps_are_nanoseconds_without_a_time_zone(tmp_path: Path) -> None:
    """Timestamps become nanoseconds without a time zone, and nulls become NaT."""
    found = column(tmp_path, pa.array([0, None], pa.timestamp("us", "Europe/Paris")))

    assert found.dtype == "datetime64[ns]"
    assert found[0] == np.datetime64(0, "ns")
    assert np.isnat(found[1])


def test_lists_of_text_become_an_array_of_objects(tmp_path: Path) -> None:
    """Lists of text become an array of objects, as in Petastorm."""
    found = column(tmp_path, pa.array([["a", "b"], ["c", "d"]]))

    assert found.dtype == object
    assert found.tolist() == [["a", "b"], ["c", "d"]]


def test_lists_of_different_lengths_raise(tmp_path: Path) -> None:
    """Lists of different lengths raise RuntimeError with the lengths, at each `next`."""
    url = tables.plain(tmp_path / "t", {"a": [[1], [1, 2]]})

    with make_batch_reader(url) as reader:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Got the following set of lengths: '1, 2'"):
                next(reader)


def test_columns_of_unsupported_types_are_skipped_with_a_warning(tmp_path: Path) -> None:
    """A column of an unsupported type is skipped, with a warning that names the type."""
    url = tables.plain(tmp_path / "t", {"id": [1], "half": pa.array([1.0], pa.float16()), "deep": pa.array([[[1]]])})

    with pytest.warns(UserWarning, match="unsupported") as warned:
        batch = first(url)

    assert batch._fields == ("id",)
    assert [str(one.message) for one in warned] == [
        "Column 'half' has an unsupported type halffloat, and is left out.",
        "[ARROW-1644] Ignoring unsupported structure list<element: list<element: int64>> for field 'deep'",
    ]


def test_partition_columns_are_categories_and_come_first(tmp_path: Path) -> None:
    """Partition columns are pandas Categoricals and come first, as in Petastorm."""
    for part in ("a", "b"):
        tables.plain(tmp_path / f"part={part}", {"id": [1, 2]})

    batch = first(tmp_path.as_uri())

    assert batch._fields == ("part", "id")
    assert isinstance(batch.part, pd.Categorical)
    assert batch.part.tolist() == ["a", "a"]
    assert list(batch.part.categories) == ["a", "b"]
    assert first(tmp_path.as_uri(), schema_fields=["id"])._fields == ("id",)


def test_categories_are_those_of_the_whole_dataset(tmp_path: Path) -> None:
    """Category codes are the same with and without a predicate that excludes directories."""
    for part in ("a", "b"):
        tables.plain(tmp_path / f"part={part}", {"id": [1, 2]})

    batch = first(tmp_path.as_uri(), predicate=in_set({"b"}, "part"))

    assert (batch.part.tolist(), list(batch.part.categories), batch.part.codes.tolist()) == (["b", "b"], ["a", "b"], [1, 1])


def test_columns_from_a_transform_function_are_writable(tmp_path: Path) -> None:
    """Columns from a transform function are writable, also where pandas makes its own arrays read-only."""
    url = tables.plain(tmp_path / "t", {"id": [1, 2], "b": [True, False], "x": [0.5, 1.5]})

    batch = first(url, transform_spec=TransformSpec(lambda frame: frame))

    assert [values.flags.writeable for values in batch] == [True] * 3


def test_single_files_have_no_partition_columns(tmp_path: Path) -> None:
    """Single files have no partition columns. A list of files may name a file twice."""
    for part in ("a", "b"):
        tables.plain(tmp_path / f"part={part}", {"id": [1, 2]})
    urls = [f"{tmp_path.as_uri()}/part={part}/part-0.parquet" for part in ("a", "b", "a")]

    with make_batch_reader(urls) as reader:
        batches = list(reader)
    with make_batch_reader(urls[0]) as reader:
        single = list(reader)

    assert [batch._fields for batch in batches] == [("id",)] * 3
    assert tables.ids(single) == [1, 2]


def test_urls_of_different_schemes_raise(tmp_path: Path) -> None:
    """URLs of different schemes or hosts raise ValueError, and so does a URL without a bucket."""
    with pytest.raises(ValueError, match="must contain url with the same scheme and netloc"):
        make_batch_reader([tmp_path.as_uri(), "s3://b/c"])
    with pytest.raises(ValueError, match="URLs must be of the form s3://bucket/path"):
        make_batch_reader("s3:///c")


@pytest.mark.parametrize("pool", POOLS)
def test_a_predicate_gets_whole_columns(url: str, pool: str) -> None:
    """A predicate is called for all rows of a row group at once. Rows that pass keep all their values."""
    odd = in_lambda(["id", "x"], lambda number, x: (number % 2 == 1) & (x > 5))

    with make_batch_reader(url, predicate=odd, reader_pool_type=pool, workers_count=2, shuffle_rows=True) as reader:
        batches = list(reader)

    assert sorted(tables.ids(batches)) == list(range(11, 40, 2))
    for batch in batches:
        assert batch.id.dtype == np.int64
        assert batch.word.tolist() == [f"word {n}" for n in batch.id]
        assert batch.vector[:, 0].tolist() == batch.id.tolist()


def test_a_predicate_with_a_single_result_raises(url: str) -> None:
    """A predicate that returns one boolean for a row group raises ValueError."""
    once = in_lambda(["id"], lambda number: bool(len(number)))

    with (
        make_batch_reader(url, predicate=once) as reader,
        pytest.raises(ValueError, match="must return a boolean for each of its rows"),
    ):
        next(reader)


@pytest.mark.parametrize("pool", POOLS)
def test_a_transform_function_gets_the_data_frame_of_a_row_group(url: str, pool: str) -> None:
    """A transform function gets a row group as a data frame, and may return other columns and fewer rows."""

    def halved(frame: pd.DataFrame) -> pd.DataFrame:
        left = frame[frame["id"] % 2 == 0].copy()
        left["matrix"] = [np.full((2, 3), n, np.float32) for n in left["id"]]
        return left.drop(columns=["vector"])

    spec = TransformSpec(halved, edit_fields=[("matrix", np.float32, (2, 3), False)], removed_fields=["vector", "x"])
    with make_batch_reader(
        url, transform_spec=spec, reader_pool_type=pool, workers_count=2, shuffle_row_groups=False
    ) as reader:
        batches = list(reader)

    assert batches[0]._fields == ("id", "word", "matrix")
    assert tables.ids(batches) == list(range(0, 40, 2))
    assert batches[0].matrix.shape == (5, 2, 3)
    assert batches[0].word.dtype.kind == "U"


def test_a_transform_function_that_returns_no_rows_gives_no_batch(url: str) -> None:
    """A row group for which a transform function returns no rows gives no batch."""
    spec = TransformSpec(lambda frame: frame[frame["id"] >= 35])

    with make_batch_reader(url, transform_spec=spec) as reader:
        assert [len(batch.id) for batch in reader] == [5]


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ([np.zeros((2, 4))] * 10, "field matrix must be the shape \\(2, 3\\)"),
        ([[1]] * 10, "field matrix must be numpy array type"),
        ([np.asfortranarray(np.zeros((2, 3)))] * 10, "field matrix error: only support row major multi-dimensional array"),
    ],
)
def test_cells_that_differ_from_their_declaration_raise(url: str, cells: list[Any], text: str) -> None:
    """Cells that are not row-major arrays of the declared shape raise ValueError."""
    spec = TransformSpec(lambda frame: frame.assign(matrix=cells), edit_fields=[("matrix", np.float64, (2, 3), False)])

    with make_batch_reader(url, transform_spec=spec) as reader, pytest.raises(ValueError, match=text):
        next(reader)


def test_a_declared_shape_with_a_variable_size_raises(url: str) -> None:
    """A declared shape of several dimensions with a variable size raises ValueError."""
    spec = TransformSpec(
        lambda frame: frame.assign(matrix=[np.zeros((2, 3))] * 10), edit_fields=[("matrix", np.float64, (None, 3), False)]
    )

    with (
        make_batch_reader(url, transform_spec=spec) as reader,
        pytest.raises(ValueError, match=r"All dimensions of a shape: .* must be constant"),
    ):
        next(reader)


def test_missing_columns_of_a_transform_function_raise(url: str) -> None:
    """A transform function that omits a declared column raises ValueError that lists the columns."""
    with (
        make_batch_reader(url, transform_spec=TransformSpec(lambda frame: frame[["id"]])) as reader,
        pytest.raises(ValueError, match="Transformed result columns \\(id\\) do not match required schema columns"),
    ):
        next(reader)


@pytest.mark.parametrize("size", [1, 7, 10, 13, 100])
def test_batches_of_one_size(url: str, size: int) -> None:
    """All batches have `batch_size` rows except the last, which `drop_last` drops. The length counts them."""
    with make_batch_reader(url, batch_size=size, shuffle_row_groups=False, num_epochs=2) as reader:
        count, batches = len(reader), list(reader)
    with make_batch_reader(url, batch_size=size, drop_last=True, shuffle_row_groups=False, num_epochs=2) as reader:
        whole, sizes = len(reader), [len(batch.id) for batch in reader]

    assert tables.ids(batches) == [*range(40), *range(40)]
    assert {len(batch.id) for batch in batches[:-1]} <= {size}
    assert (count, whole) == (len(batches), len(sizes))
    assert set(sizes) <= {size}
    assert all(batch.word.tolist() == [f"word {n}" for n in batch.id] for batch in batches)


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
@pytest.mark.parametrize("last", ["2021-07-01", "0001-01-01"])
def test_a_transform_function_keeps_timestamps(tmp_path: Path, zone: str | None, last: str) -> None:
    """Timestamps keep their values without the time zone, also outside the range of nanoseconds."""
    moments = np.array(["2020-01-01", "NaT", last], "datetime64[us]")
    values = pa.array(moments).cast(pa.timestamp("us", zone))

    for options in ({}, {"transform_spec": TransformSpec(lambda frame: frame)}):
        found = column(tmp_path, values, **options)
        assert found.dtype.kind == "M"
        np.testing.assert_array_equal(found, moments)


def joined(place: Path, values: Any) -> Any:
    """Return a column of two row groups as one batch."""
    return first(tables.plain(place, {"a": values}, group=2), batch_size=4).a


def test_a_batch_joins_row_groups_with_and_without_nulls(tmp_path: Path) -> None:
    """A batch of row groups with and without null lists has objects. Lists of different lengths raise RuntimeError."""
    found = joined(tmp_path / "t", [[1, 2], [3, 4], None, [5, 6]])

    assert [cell if cell is None else cell.tolist() for cell in found] == [[1, 2], [3, 4], None, [5, 6]]
    with pytest.raises(RuntimeError, match="Length of all values in column 'a' are expected to be the same length"):
        joined(tmp_path / "differing", [[1, 2], [3, 4], [5], [6]])


def test_a_batch_joins_timestamps_of_different_units(tmp_path: Path) -> None:
    """A batch joins a row group in the range of nanoseconds and one outside it."""
    moments = np.array(["2020-01-01", "NaT", "0001-01-01", "9999-01-01"], "datetime64[us]")

    np.testing.assert_array_equal(joined(tmp_path / "t", pa.array(moments)), moments)


def test_datasets_of_petastorm_are_decoded_on_request(tmp_path: Path) -> None:
    """`decode=True` decodes cells of Petastorm datasets. Otherwise they are bytes, with a warning."""
    url = tables.small(tmp_path / "t")

    with pytest.warns(UserWarning, match="Please use make_reader"):
        raw = first(url)
    batch = first(url, decode=True)

    assert raw.image[0].startswith(b"\x89PNG")
    assert batch.image.shape == (10, 4, 6, 3)
    assert (batch.image[3] == 3).all()
    assert batch.vector.tolist() == [[n] * 3 for n in range(10)]
    assert batch.score.tolist() == [0, 10, 20, 30, None, 50, 60, 70, 80, None]


def test_windows_of_batches_raise(url: str) -> None:
    """A reader of batches raises NotImplementedError for an `NGram`."""
    field = UnischemaField("id", np.int64, ())

    with pytest.raises(NotImplementedError, match="ngrams are not supported by ArrowReaderWorker"):
        make_batch_reader(url, schema_fields=NGram({0: [field]}, 1, field))


def test_early_conversion_is_accepted_by_every_pool(url: str) -> None:
    """`convert_early_to_numpy` is accepted with all pools, whose workers always convert."""
    for pool in POOLS:
        with make_batch_reader(url, convert_early_to_numpy=True, reader_pool_type=pool, workers_count=1) as reader:
            assert sorted(tables.ids(reader)) == list(range(40))


def test_the_length_is_the_number_of_batches(url: str) -> None:
    """The length includes epochs and filters. A length that cannot be known raises TypeError."""
    with make_batch_reader(url, num_epochs=3) as reader:
        assert len(reader) == 12
    with make_batch_reader(url, filters=[("id", ">", 25)]) as reader:
        assert len(reader) == len(list(reader)) == 2
    options: dict[str, Any]
    for options in ({"num_epochs": None}, {"predicate": in_lambda(["id"], lambda n: n > 3)}):
        with make_batch_reader(url, **options) as reader, pytest.raises(TypeError, match="has no length"):
            len(reader)
