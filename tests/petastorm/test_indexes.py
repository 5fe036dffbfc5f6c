"""Indexes of row groups: built, stored, read without unpickling, and what is selected by them."""

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
    """Return which row groups are read."""
    with make_reader(url, rowgroup_selector=selector, schema_fields=["id"], **options) as reader:
        return sorted({number // 10 for number in tables.ids(reader)})


def test_indexes_are_stored_and_read(indexed: str) -> None:
    """What was built comes back, by name."""
    found = get_row_group_indexes(open_dataset(indexed))

    assert list(found) == ["by id", "by name", "scored"]
    assert found["by id"].get_row_group_indexes(13) == {1}
    assert found["by name"].get_row_group_indexes("row 39") == {3}
    assert found["scored"].get_row_group_indexes("whatever") == {0, 1, 2, 3}
    assert found["scored"].indexed_values == ["Field is Not Null"]
    assert sorted(found["by id"].indexed_values) == list(range(40))
    assert found["by id"].column_names == ["id"]


def test_the_dataset_is_still_one_of_petastorm(indexed: str) -> None:
    """Indexes stand beside what was stored."""
    assert get_schema_from_dataset_url(indexed)._name == "Small"
    with make_reader(indexed) as reader:
        assert sorted(tables.ids(reader)) == list(range(40))


def test_a_selector_chooses_row_groups(indexed: str) -> None:
    """Row groups that hold a value are read whole."""
    by_id, by_name = SingleIndexSelector("by id", [3, 31]), SingleIndexSelector("by name", ["row 5", "row 15"])

    assert selected(indexed, by_id) == [0, 3]
    assert selected(indexed, IntersectIndexSelector([by_id, by_name])) == [0]
    assert selected(indexed, UnionIndexSelector([by_id, by_name])) == [0, 1, 3]


def test_shards_and_filters_move_no_row_group(indexed: str) -> None:
    """Numbers are those of the whole dataset."""
    by_id = SingleIndexSelector("by id", [3, 13, 31])

    assert selected(indexed, by_id, cur_shard=1, shard_count=2) == [1, 3]
    assert selected(indexed, by_id, filters=[("id", ">", 12)]) == [1, 3]


def test_a_value_that_is_not_indexed_selects_nothing(indexed: str) -> None:
    """That is warned of."""
    with pytest.warns(UserWarning, match="No matching data is available"):
        assert selected(indexed, SingleIndexSelector("by id", [99])) == []


def test_an_index_that_is_not_there_is_refused(indexed: str, tmp_path: Path) -> None:
    """Those that are there are named."""
    with pytest.raises(ValueError, match="Some of required indexes \\['nope'\\] are not available in \\['by id'"):
        selected(indexed, SingleIndexSelector("nope", [1]))
    with pytest.raises(ValueError, match="Row groups indexes were not found"):
        selected(tables.small(tmp_path / "t"), SingleIndexSelector("by id", [1]))
    with pytest.raises(ValueError, match="Could not find _common_metadata"):
        get_row_group_indexes(open_dataset(tables.plain(tmp_path / "p", {"id": [1]})))


def test_real_indexes_select_row_groups(corpus: Corpus) -> None:
    """Datasets that Petastorm indexed are selected from."""
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
    """Arrays count by their elements, and None does not count."""
    index = SingleFieldIndexer("name", "x")

    index.build_index([{"x": np.array(["a", "b"])}, {"x": None}, {"x": np.array(["b"])}], 4)
    index.build_index([{"x": np.array(["a"])}], 5)

    assert index.get_row_group_indexes("a") == {4, 5}
    assert index.get_row_group_indexes("b") == {4}
    assert index.get_row_group_indexes("c") == set()
    with pytest.raises(ValueError, match="Cannot build index for empty rows"):
        index.build_index([], 6)


def test_indexes_of_one_field_are_merged() -> None:
    """Others are refused."""
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
    """A row group counts where it holds any value."""
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
def test_stored_indexes_are_what_they_were(values: dict[Any, set[int]]) -> None:
    """Whatever values there are, the pickle that we write is one that we read."""
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


def test_what_cannot_be_stored_is_told() -> None:
    """Values of other types, and indexes of users."""
    index = SingleFieldIndexer("name", "x")
    index.build_index([{"x": (1, 2)}], 0)

    with pytest.raises(ValueError, match="Numbers, text and bytes can be stored"):
        pickle_indexes({"name": index})
    with pytest.raises(ValueError, match="Indexes of the type object cannot be stored"):
        pickle_indexes({"name": object()})


def test_fields_that_are_not_there_are_not_indexed(tmp_path: Path) -> None:
    """The schema is told."""
    url = tables.small(tmp_path / "t")

    with pytest.raises(ValueError, match="Fields \\['nope'\\] are to be indexed"):
        build_rowgroup_index(url, None, [SingleFieldIndexer("name", "nope")])
    with pytest.raises(ValueError, match="got no indexers"):
        build_rowgroup_index(url, None, [])


def test_schemas_are_found_or_follow_from_columns(tmp_path: Path) -> None:
    """A dataset without one is told so, and by the other function inferred."""
    plain = tables.plain(tmp_path / "p", {"id": [1]})

    with pytest.raises(PetastormMetadataError, match="Could not find _common_metadata file"):
        get_schema_from_dataset_url(plain)
    assert infer_or_load_unischema(open_dataset(plain))._name == "inferred_schema"
    assert list(get_schema(open_dataset(tables.small(tmp_path / "t"))).fields) == ["id", "name", "vector", "image", "score"]


def test_row_groups_are_listed_in_order(tmp_path: Path) -> None:
    """Files by path, and in each its row groups, with what directories say of them."""
    dataset = open_dataset(tables.partitioned(tmp_path / "t", rows=8, group=1))

    pieces = load_row_groups(dataset)

    assert [piece.row_group for piece in pieces] == [0, 1] * 4
    assert [piece.path for piece in pieces] == sorted(piece.path for piece in pieces)
    assert pieces[0].partition_keys == (("part", "p_0"),)
    assert pieces[0].get_metadata().num_row_groups == 2


def test_modules_that_have_moved_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """A pickle that names them as they once were is read, and should be written anew."""
    data = base64.b64decode(petastorm_pickles.OWN_CODEC[0]).replace(
        b"cpetastorm.unischema", b"cav.ml.dataset_toolkit.unischema"
    )

    found = depickle_legacy_package_name_compatible(data)

    assert list(found.fields) == ["id", "x"]
    assert caplog.messages == ["av.ml.dataset_toolkit.unischema has moved to petastorm.unischema. Regenerate metadata."]


def test_hostile_pickles_are_read_as_data() -> None:
    """What an unpickler would run is an error."""
    with pytest.raises(DataError, match=r"builtins\.eval"):
        restricted_loads(b"cbuiltins\neval\n(S'6*7'\ntR.")
