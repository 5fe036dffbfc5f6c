"""Ragged policies of mixtures act on batches with rows of all sources as they do on batches of a dataset."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ArgumentError, ColumnNotFoundError, DataError, MapError
from penstock.testing import MemoryFormat

ITEMS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int16": (pa.int16(), st.integers(-9, 9)),
    "float": (pa.float32(), st.sampled_from([0.5, float("nan"), -1.0])),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text("ab", max_size=2)),
    "date": (pa.date32(), st.dates(dt.date(2020, 1, 1), dt.date(2020, 1, 9))),
    "moment": (pa.timestamp("us"), st.datetimes(dt.datetime(2020, 1, 1), dt.datetime(2021, 1, 1))),  # noqa: DTZ001 - no zone
    "lists": (pa.list_(pa.int64()), st.lists(st.integers(0, 9), max_size=3)),
    "lists of lists": (pa.list_(pa.list_(pa.string())), st.lists(st.lists(st.text("ab", max_size=1), max_size=2), max_size=2)),
}

RAGGED: list[Any] = [ps.Pad(), ps.Pad(length=2, truncate=True), ps.Offsets(), ps.RaiseIfRagged()]


def table(cells: list[Any], kind: pa.DataType, name: str = "table") -> ps.Dataset:
    """Return a dataset with a column of lists and a column of row numbers."""
    data = pa.table({"id": pa.array(range(len(cells)), pa.int64()), "x": pa.array(cells, pa.list_(kind))})
    return MemoryFormat.of(data, row_group_rows=2, name=name).open().using(threads=2)


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Assert that two batches have the same columns, types and values."""
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert (values.dtype, values.shape) == (other[name].dtype, other[name].shape), name
        assert repr(values.tolist()) == repr(other[name].tolist()), name


def outcome(batches: Any) -> Any:
    """Return the batches, or the type of the error that reading them raises."""
    try:
        return list(batches)
    except (DataError, ArgumentError) as error:
        return type(error)


@given(data=st.data(), kind=st.sampled_from(sorted(ITEMS)), policy=st.sampled_from(RAGGED), masked=st.booleans())
def test_a_mixture_pads_as_a_dataset_does(data: st.DataObject, kind: str, policy: Any, *, masked: bool) -> None:
    """A mixture of one source returns the batches of that source, whether source or mixture has the policy."""
    item, items = ITEMS[kind]
    cells = data.draw(st.lists(st.lists(items | st.none(), max_size=4) | st.none(), min_size=1, max_size=7))
    ds = table(cells, item)
    ds = ds.nulls(ps.Mask(), "x") if masked else ds
    size = data.draw(st.integers(1, 4))
    expected = outcome(ds.ragged(policy, "x").batch(size))

    of_source = outcome(ps.mix([(ds.ragged(policy, "x"), 1)]).batch(size))
    of_mixture = outcome(ps.mix([(ds, 1)]).batch(size).ragged(policy, "x"))

    for found in (of_source, of_mixture):
        assert isinstance(found, list) == isinstance(expected, list)
        for one, other in zip(found, expected, strict=True) if isinstance(found, list) else ():
            assert_equal(one, other)


@given(
    left=st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=3, max_size=9),
    right=st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=3, max_size=9),
    size=st.integers(1, 5),
)
def test_rows_of_all_sources_are_padded_together(left: list[Any], right: list[Any], size: int) -> None:
    """All lists of a batch are padded to the longest one, whichever source that comes from, and none is cut."""
    found = ps.mix([(table(left, pa.int64(), "left"), 2), (table(right, pa.int64(), "right"), 1)]).with_source().batch(size)
    for batch in found.ragged(ps.Pad(-1), "x"):
        tables = [left, right]
        expected = [tables[source][row] for source, row in zip(batch["_source"], batch["id"], strict=True)]

        width = max(map(len, expected))
        assert batch["x"].tolist() == [cell + [-1] * (width - len(cell)) for cell in expected]
        assert batch["x_length"].tolist() == [len(cell) for cell in expected]


@pytest.mark.slow
def test_ranks_resumes_and_processes_give_the_same_batches() -> None:
    """Resumes and worker processes return the same batches under a policy, and all ranks together the same rows."""
    cells = [list(range(n % 5)) for n in range(40)]
    ds = ps.mix([(table(cells, pa.int64()).shuffle(seed=1), 3), (table(cells, pa.int64(), "other"), 1)], stop="all")
    ds = ds.batch(4, last="uneven").ragged(ps.Pad(), "x").map(doubled)
    whole = list(ds)

    loader = ps.loader(ds)
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]
    again = ps.loader(ds)
    again.load_state_dict(loader.state_dict())
    rest = list(again)
    in_processes = list(ds.using(workers="processes", processes=1))

    for found in ([*first, *rest], in_processes):
        for one, other in zip(found, whole, strict=True):
            assert_equal(one, other)
    by_rank = [batch for rank in range(2) for batch in ds.shard(rank, 2)]
    assert sorted(n for batch in by_rank for n in batch["id"]) == sorted(n for batch in whole for n in batch["id"])


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the batch with the values of its lists doubled."""
    return {**batch, "x": batch["x"] * 2}


def test_a_map_packs_the_values_of_a_batch() -> None:
    """With offsets, the values of a batch are one array, and a map can return any number of rows."""
    ds = ps.mix([(table([[1, 2, 3], [4], [5, 6]], pa.int64()), 1)]).batch(3).ragged(ps.Offsets(), "x")

    (packed,) = ds.map(lambda batch: {"x": batch["x"].reshape(-1, 2)})

    assert packed["x"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_a_map_that_changes_the_number_of_rows_raises_with_advice_for_mixtures() -> None:
    """The advice of the error is one that a mixture accepts."""
    one = table([[1, 2, 3], [4], [5, 6]], pa.int64())
    mixtures = [
        ps.mix([(one, 1)]).batch(3).map(lambda batch: {"x": np.concatenate(list(batch["x"]))}),
        ps.mix([(one.batch(3).map(lambda batch: {"x": np.concatenate(list(batch["x"]))}), 1)]),
    ]
    for mixture in mixtures:
        with pytest.raises(MapError) as refused:
            next(iter(mixture))

        assert "row_group" not in str(refused.value)
        assert ".ragged(penstock.Offsets(), column)" in str(refused.value)


def test_maps_of_sources_see_lists_as_they_are_and_the_mixture_pads_what_they_return() -> None:
    """Maps of the sources run before the ragged policies of the mixture."""
    short = table([[1, 2, 3], [4]], pa.int64(), "short").map(lambda row: {"y": row["x"][:2]})
    long = table([[5], [6, 7]], pa.int64(), "long").map(lambda row: {"y": [*row["x"].tolist(), 0]})

    (batch,) = ps.mix([(short, 1), (long, 1)]).with_source().batch(4).ragged(ps.Pad(-1), "y")

    found = sorted(zip(batch["_source"].tolist(), batch["y"].tolist(), strict=True))
    assert found == [(0, [1, 2, -1]), (0, [4, -1, -1]), (1, [5, 0, -1]), (1, [6, 7, 0])]


def test_cells_of_two_dtypes_are_refused() -> None:
    """Padding a batch whose lists differ in dtype raises DataError instead of converting values."""
    ds = table([[1, 2], [3]], pa.int64()).map(lambda row: {"y": row["x"] * (1 if len(row["x"]) > 1 else 0.5)})

    with pytest.raises(DataError, match="the cell has float64 in 1 dimensions, and another of its batch has int64 in 1"):
        next(iter(ps.mix([(ds, 1)]).batch(2).ragged(ps.Pad(), "y")))


def test_arrays_of_a_codec_are_padded(tmp_path: Path) -> None:
    """Arrays that differ in shape are padded in every dimension that differs, and a column has all their lengths."""
    schema = ps.Schema("Clips", [ps.Field("x", np.float32, (None, None), ps.codecs.Npy())])
    shapes = {"left": [(1, 2), (3, 1)], "right": [(2, 2), (1, 1)]}
    for name, sizes in shapes.items():
        ps.write(tmp_path / name, schema, data=[{"x": np.ones(shape, np.float32)} for shape in sizes])
    sources = [(ps.open(tmp_path / name), 1) for name in shapes]

    mixed = ps.mix(sources).with_source().batch(4).ragged(ps.Pad(), "x")
    (batch,) = mixed

    order = np.argsort(batch["_source"], kind="stable")
    assert batch["x"].shape == (4, 3, 2)
    assert batch["x_length"][order].tolist() == [list(shape) for sizes in shapes.values() for shape in sizes]
    assert {field.name: field.shape for field in mixed.schema} == {
        "x": (None, None),
        "x_length": (2,),
        "_source": (),
    }


def test_batches_of_sources_are_padded_each_by_itself() -> None:
    """If each batch comes from one source, the policy of the mixture pads each batch by itself."""
    one = table([[1, 2, 3], [4]], pa.int64(), "one").batch(2)
    other = table([[5], [6, 7]], pa.int64(), "other").batch(2)

    found = [batch["x"].tolist() for batch in ps.mix([(one, 1), (other, 1)]).ragged(ps.Pad(), "x")]

    assert sorted(found) == [[[1, 2, 3], [4, 0, 0]], [[5, 0], [6, 7]]]


def test_a_mixture_prints_the_policies_of_its_sources_as_its_own() -> None:
    """The same policy on all sources or on the mixture gives equal mixtures."""
    ds = table([[1], [2, 3]], pa.int64())
    of_sources = ps.mix([(ds.ragged(ps.Pad(), "x"), 1), (ds.ragged(ps.Pad(), "x"), 1)]).batch(4)
    of_mixture = ps.mix([(ds, 1), (ds, 1)]).batch(4).ragged(ps.Pad(), "x")

    assert of_sources == of_mixture
    assert repr(of_mixture).endswith(".batch(4).ragged(Pad(value=0, length=None, truncate=False), 'x')")
    assert of_mixture.schema.names == ("id", "x", "x_length")
    assert of_mixture.ragged(ps.AsObjects(), "x").schema.names == ("id", "x")


def test_a_null_list_is_reported_with_its_position() -> None:
    """The error names the file, the row group and the row of the source."""
    good, bad = table([[1], [2]], pa.int64(), "good"), table([[1], [1], None], pa.int64(), "bad")

    with pytest.raises(DataError) as refused:
        list(ps.mix([(good, 1), (bad, 1)], stop="all").batch(6).ragged(ps.Pad(), "x"))

    assert str(refused.value).startswith(
        "part-0.parquet, row group 1, row 2, column 'x': the value is null, and an array of int64"
    )


def test_lists_of_other_lengths_in_another_source_are_refused() -> None:
    """RaiseIfRagged requires one length for all sources, not one for each."""
    one, other = table([[1, 2]] * 3, pa.int64(), "one"), table([[1]] * 3, pa.int64(), "other")

    for mixture in (
        ps.mix([(ds.ragged(ps.RaiseIfRagged(), "x"), 1) for ds in (one, other)]).batch(4),
        ps.mix([(one, 1), (other, 1)]).batch(4).ragged(ps.RaiseIfRagged(), "x"),
    ):
        with pytest.raises(DataError, match="and another of its batch has"):
            next(iter(mixture))


def test_invalid_policies_raise_with_advice() -> None:
    """Different policies, columns without lists, unknown columns and invalid combinations raise errors with advice."""
    ds = table([[1], [2, 3]], pa.int64())
    mixed = ps.mix([(ds, 1), (ds, 1)])

    with pytest.raises(ArgumentError, match="expected one policy for a batch with rows of all sources"):
        ps.mix([(ds.ragged(ps.Pad(1), "x"), 1), (ds.ragged(ps.Pad(2), "x"), 1)])
    with pytest.raises(ArgumentError, match=r"ragged\(\) got Pad\(.*\) for column 'id'"):
        mixed.ragged(ps.Pad(), "id")
    with pytest.raises(ColumnNotFoundError, match="'y'"):
        mixed.ragged(ps.Pad(), "y")
    with pytest.raises(ArgumentError, match=r"ragged\(\) got 8"):
        mixed.ragged(8, "x")  # type: ignore[arg-type] # a length is not a policy
    with pytest.raises(ArgumentError, match='which does not combine with last="pad"'):
        mixed.ragged(ps.Offsets(), "x").batch(3, last="pad")
    with pytest.raises(ArgumentError, match="adds a column 'x_length'"):
        ps.mix([(ds.map(lambda row: row, fields=[ps.Field("x", np.int64, (None,)), ps.Field("x_length", int)]), 1)]).ragged(
            ps.Pad(), "x"
        )
    with pytest.raises(ArgumentError, match=r"this dataset has no batches. Add .batch\(size\)"):
        iter(mixed.ragged(ps.Pad(), "x"))
    rows = [row["x"].tolist() for row in mixed.ragged(ps.Pad(length=3), "x")]
    assert sorted(rows) == [[1, 0, 0], [1, 0, 0], [2, 3, 0], [2, 3, 0]]


@pytest.mark.parametrize("policy", [ps.Pad(), ps.Offsets()])
def test_a_pattern_leaves_columns_without_lists_as_they_are(policy: Any) -> None:
    """`.ragged(policy, ".*")` applies to all columns of lists and to no others, in a mixture as in a dataset."""
    data = pa.table({"id": [1, 2], "text": ["a", "b"], "pair": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))})
    data = data.append_column("x", pa.array([[1], [2, 3]])).append_column("about", pa.array([{"a": 1}, {"a": 2}]))
    ds = MemoryFormat.of(data, row_group_rows=2).open()

    (expected,) = ds.batch(2).ragged(policy, ".*")

    for mixed in (
        ps.mix([(ds, 1)]).batch(2).ragged(policy, ".*"),
        ps.mix([(ds, 1)]).batch(2).ragged(policy, "x", "pair"),
        ps.mix([(ds.ragged(policy, ".*"), 1)]).batch(2),
    ):
        (found,) = mixed
        assert_equal(found, expected)
        assert set(found) == set(mixed.schema.names)
