"""Indexes of row groups: building, storing, reading without unpickling, and selecting row groups."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import petastorm_pickles
import petastorm_tables as tables
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import DataError
from penstock.formats.petastorm import PetastormFormat, load_indexes
from penstock.petastorm import make_reader
from penstock.petastorm._impl.dataset import open_dataset
from penstock.petastorm.etl import RowGroupIndexerBase
from penstock.petastorm.etl._index_pickle import pickle_indexes
from penstock.petastorm.etl.dataset_metadata import (
    PetastormMetadataError,
    get_schema,
    get_schema_from_dataset_url,
    infer_or_load_unischema,
    load_row_groups,
)
from penstock.petastorm.etl.legacy import depickle_legacy_package_name_compatible, restricted_loads
from penstock.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer
from penstock.petastorm.etl.rowgroup_indexing import build_rowgroup_index, get_row_group_indexes
from penstock.petastorm.selectors import IntersectIndexSelector, SingleIndexSelector, UnionIndexSelector

Corpus = Callable[[str], Path]


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of four row groups of ten rows, with indexes."""
    url = tables.small(tmp_path_factory.mktemp("small") / "t")
    indexers = [
        SingleFieldIndexer("by id", "id"),
        SingleFieldIndexer("by name", "name"),
        FieldNotNullIndexer("scored", "score"),
    ]
    build_rowgroup_index(url, None, indexers)
    return url


def selected(url: str, selector: Any, **options: Any) -> list[int]:
    """Return the numbers of the row groups that are read."""
    with make_reader(url, rowgroup_selector=selector, schema_fields=["id"], **options) as reader:
        return sorted({number // 10 for number in tables.ids(reader)})


def test_indexes_are_stored_and_read(indexed: str) -> None:
    """Stored indexes are read back by name."""
    found = get_row_group_indexes(open_dataset(indexed))

    assert list(found) == ["by id", "by name", "scored"]
    assert found["by id"].get_row_group_indexes(13) == {1}
    assert found["by name"].get_row_group_indexes("row 39") == {3}
    assert found["scored"].get_row_group_indexes("whatever") == {0, 1, 2, 3}
    assert found["scored"].indexed_values == ["Field is Not Null"]
    assert sorted(found["by id"].indexed_values) == list(range(40))
    assert found["by id"].column_names == ["id"]


def test_an_indexed_dataset_keeps_its_schema_and_rows(indexed: str) -> None:
    """Storing indexes does not change the schema or the rows of a dataset."""
    assert get_schema_from_dataset_url(indexed)._name == "Small"
    with make_reader(indexed) as reader:
        assert sorted(tables.ids(reader)) == list(range(40))


def test_a_selector_chooses_row_groups(indexed: str) -> None:
    """Selectors choose the row groups that contain the values, also as an intersection or a union."""
    by_id, by_name = SingleIndexSelector("by id", [3, 31]), SingleIndexSelector("by name", ["row 5", "row 15"])

    assert selected(indexed, by_id) == [0, 3]
    assert selected(indexed, IntersectIndexSelector([by_id, by_name])) == [0]
    assert selected(indexed, UnionIndexSelector([by_id, by_name])) == [0, 1, 3]


def test_shards_and_filters_do_not_renumber_row_groups(indexed: str) -> None:
    """Selectors use the row group numbers of the whole dataset, also with shards and filters."""
    by_id = SingleIndexSelector("by id", [3, 13, 31])

    assert selected(indexed, by_id, cur_shard=1, shard_count=2) == [1, 3]
    assert selected(indexed, by_id, filters=[("id", ">", 12)]) == [1, 3]


def test_a_value_that_is_not_indexed_selects_nothing(indexed: str) -> None:
    """A value outside the index selects nothing and warns."""
    with pytest.warns(UserWarning, match="No matching data is available"):
        assert selected(indexed, SingleIndexSelector("by id", [99])) == []


def test_a_missing_index_raises(indexed: str, tmp_path: Path) -> None:
    """A missing index raises ValueError that names the existing indexes, if there are any."""
    with pytest.raises(ValueError, match="Some of required indexes \\['nope'\\] are not available in \\['by id'"):
        selected(indexed, SingleIndexSelector("nope", [1]))
    with pytest.raises(ValueError, match="Row groups indexes were not found"):
        selected(tables.small(tmp_path / "t"), SingleIndexSelector("by id", [1]))
    with pytest.raises(ValueError, match="Could not find _common_metadata"):
        get_row_group_indexes(open_dataset(tables.plain(tmp_path / "p", {"id": [1]})))


def test_indexes_that_petastorm_wrote_select_row_groups(corpus: Corpus) -> None:
    """Indexes that Petastorm wrote select row groups."""
    url = corpus("petastorm/legacy-0.7.6").as_uri()
    indexes = get_row_group_indexes(open_dataset(url))
    name, index = next((name, index) for name, index in indexes.items() if index.column_names == ["id"])
    (group,) = index.get_row_group_indexes(42)

    with make_reader(url, rowgroup_selector=SingleIndexSelector(name, [42])) as reader:
        found = tables.ids(reader)

    assert 42 in found
    assert len(found) == 10
    assert len(load_row_groups(open_dataset(url))) == 10
    assert isinstance(index, RowGroupIndexerBase)
    assert group < 10


def test_indexes_are_built_row_group_by_row_group() -> None:
    """Each element of an array is indexed, None is not, and no rows raise ValueError."""
    index = SingleFieldIndexer("name", "x")

    index.build_index([{"x": np.array(["a", "b"])}, {"x": None}, {"x": np.array(["b"])}], 4)
    index.build_index([{"x": np.array(["a"])}], 5)

    assert index.get_row_group_indexes("a") == {4, 5}
    assert index.get_row_group_indexes("b") == {4}
    assert index.get_row_group_indexes("c") == set()
    with pytest.raises(ValueError, match="Cannot build index for empty rows"):
        index.build_index([], 6)


def test_indexes_of_one_field_are_merged() -> None:
    """Indexes of the same type and field can be merged. Others raise an error."""
    one, two = SingleFieldIndexer("name", "x"), SingleFieldIndexer("name", "x")
    one.build_index([{"x": 1}], 0)
    two.build_index([{"x": 1}, {"x": 2}], 1)

    assert (one + two) is one
    assert one.get_row_group_indexes(1) == {0, 1}
    with pytest.raises(TypeError, match="return the same indexer type"):
        _ = one + FieldNotNullIndexer("name", "x")
    with pytest.raises(ValueError, match="index the same fields"):
        _ = one + SingleFieldIndexer("name", "y")


def test_not_null_indexes_are_merged() -> None:
    """A merged not-null index has the row groups with at least one value."""
    one, two = FieldNotNullIndexer("name", "x"), FieldNotNullIndexer("name", "x")
    one.build_index([{"x": None}], 0)
    two.build_index([{"x": None}, {"x": 1}], 1)

    assert (one + two).get_row_group_indexes() == {1}


@given(
    values=st.dictionaries(
        st.one_of(
            st.text(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.binary(), st.decimals(allow_nan=False)
        ),
        st.sets(st.integers(0, 2**30), max_size=4),
        max_size=6,
    )
)
def test_stored_indexes_are_read_back_unchanged(values: dict[Any, set[int]]) -> None:
    """`load_indexes` reads back what `pickle_indexes` writes, for any values."""
    index = SingleFieldIndexer("name", "x")
    index._index_data.update(values)

    found = load_indexes(pickle_indexes({"name": index}))["name"]

    assert (found.name, found.column) == ("name", "x")
    assert found.row_groups == {value: frozenset(groups) for value, groups in values.items()}


SELECTING = """
from petastorm.selectors import IntersectIndexSelector, SingleIndexSelector

def rows(selector):
    return sorted(int(row.id) for row in every(sys.argv[1], rowgroup_selector=selector, schema_fields=["id"]))

by_id, by_name = SingleIndexSelector("id", [5]), SingleIndexSelector("name", ["é 5"])
by_bytes = SingleIndexSelector("raw", [b"\\xff5"])
for selector in (by_id, by_name, by_bytes, SingleIndexSelector("half", [2.5]), IntersectIndexSelector([by_id, by_name])):
    print(rows(selector))
print(rows(SingleIndexSelector("named", ["Field is Not Null"])))
"""


@pytest.mark.peer
@pytest.mark.slow
def test_petastorm_itself_selects_by_indexes_that_we_write(tmp_path: Path, ask_petastorm: Callable[..., list[str]]) -> None:
    """Petastorm 0.13.1 reads our indexes of numbers, text and bytes, and chooses the same row groups."""
    fields = [
        ps.Field("id", np.int64),
        ps.Field("name", str, nullable=True),
        ps.Field("raw", bytes),
        ps.Field("half", np.float64),
    ]
    rows = ({"id": n, "name": f"é {n}" if n > 3 else None, "raw": b"\xff%d" % n, "half": n / 2} for n in range(12))
    ps.write(tmp_path / "t", ps.Schema("Indexed", fields), rows, row_group_rows=4, format=PetastormFormat())
    url = (tmp_path / "t").as_uri()
    indexers: list[RowGroupIndexerBase] = [SingleFieldIndexer(name, name) for name in ("id", "name", "raw", "half")]
    build_rowgroup_index(url, None, [*indexers, FieldNotNullIndexer("named", "name")])

    found = [line for line in ask_petastorm(SELECTING, url) if line.startswith("[")]
    assert found == ["[4, 5, 6, 7]"] * 5 + [str(list(range(4, 12)))]


def test_indexes_that_cannot_be_stored_raise() -> None:
    """Indexes of other values, and indexes of other classes, raise ValueError."""
    index = SingleFieldIndexer("name", "x")
    index.build_index([{"x": (1, 2)}], 0)

    with pytest.raises(ValueError, match="Numbers, text and bytes can be stored"):
        pickle_indexes({"name": index})
    with pytest.raises(ValueError, match="Indexes of the type object cannot be stored"):
        pickle_indexes({"name": object()})


def test_indexing_an_unknown_field_raises(tmp_path: Path) -> None:
    """An unknown field raises ValueError, and so does an empty list of indexers."""
    url = tables.small(tmp_path / "t")

    with pytest.raises(ValueError, match="Fields \\['nope'\\] are to be indexed"):
        build_rowgroup_index(url, None, [SingleFieldIndexer("name", "nope")])
    with pytest.raises(ValueError, match="got no indexers"):
        build_rowgroup_index(url, None, [])


def test_schemas_are_loaded_or_inferred(tmp_path: Path) -> None:
    """Loading a missing schema raises an error. `infer_or_load_unischema` infers one from the columns."""
    plain = tables.plain(tmp_path / "p", {"id": [1]})

    with pytest.raises(PetastormMetadataError, match="Could not find _common_metadata file"):
        get_schema_from_dataset_url(plain)
    assert infer_or_load_unischema(open_dataset(plain))._name == "inferred_schema"
    assert list(get_schema(open_dataset(tables.small(tmp_path / "t"))).fields) == ["id", "name", "vector", "image", "score"]


def test_row_groups_are_listed_in_order(tmp_path: Path) -> None:
    """Row groups are listed by the path of their file, then by number, with their partition values."""
    dataset = open_dataset(tables.partitioned(tmp_path / "t", rows=8, group=1))

    pieces = load_row_groups(dataset)

    assert [piece.row_group for piece in pieces] == [0, 1] * 4
    assert [piece.path for piece in pieces] == sorted(piece.path for piece in pieces)
    assert pieces[0].partition_keys == (("part", "p_0"),)
    assert pieces[0].get_metadata().num_row_groups == 2


def test_old_module_names_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A pickle with old module names is read, and the log advises to generate the metadata again."""
    data = base64.b64decode(petastorm_pickles.OWN_CODEC[0]).replace(
        b"cpetastorm.unischema", b"cav.ml.dataset_toolkit.unischema"
    )

    found = depickle_legacy_package_name_compatible(data)

    assert list(found.fields) == ["id", "x"]
    assert caplog.messages == ["av.ml.dataset_toolkit.unischema has moved to petastorm.unischema. Regenerate metadata."]


def test_hostile_pickles_raise() -> None:
    """A pickle that would call a function raises DataError that names the function."""
    with pytest.raises(DataError, match=r"builtins\.eval"):
        restricted_loads(b"cbuiltins\neval\n(S'6*7'\ntR.")
