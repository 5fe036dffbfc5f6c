"""`petastorm.tools.copy_dataset`: copies fields and rows of a dataset as they are stored, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import petastorm_tables as tables
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.formats.petastorm import ROW_GROUPS_KEY, UNISCHEMA_KEY, PetastormFormat
from penstock.petastorm import make_reader
from penstock.petastorm._impl.copy import cut_row_groups
from penstock.petastorm._impl.dataset import open_dataset
from penstock.petastorm._impl.metadata_keys import store_keys
from penstock.petastorm.codecs import DataframeColumnCodec
from penstock.petastorm.etl.dataset_metadata import PetastormMetadataError, get_schema_from_dataset_url, load_row_groups
from penstock.petastorm.tools.copy_dataset import _main, args_parser, copy_dataset
from penstock.schema.json import KEY

MEGABYTE = 1 << 20


def rows(url: str, **options: Any) -> list[Any]:
    """Return the rows of a dataset in their order."""
    with make_reader(url, shuffle_row_groups=False, workers_count=2, **options) as reader:
        return list(reader)


def copied(source: str, target: Path | str, **options: Any) -> str:
    """Copy a dataset, and return the URL of the copy."""
    url = target if isinstance(target, str) else target.as_uri()
    names = ("field_regex", "not_null_fields", "overwrite_output", "partitions_count", "row_group_size_mb")
    given_or_none: list[Any] = [options.get(name) for name in names]
    copy_dataset(None, source, url, *given_or_none)
    return url


def cell(value: Any) -> Any:
    """Return a value in a form that equals itself, also with NaN."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tolist() if value.dtype == object else value.tobytes())
    return (type(value), repr(value))


def same(one: Any, other: Any) -> bool:
    """Return whether two rows have the same fields, types and values."""
    return one._fields == other._fields and list(map(cell, one)) == list(map(cell, other))


def footers(place: Path) -> list[Any]:
    """Return the footers of the files of a table."""
    return [pq.read_metadata(path) for path in sorted(place.glob("*.parquet"))]


def test_a_copy_has_the_rows_of_its_source(tmp_path: Path) -> None:
    """A copy has all fields and rows of its source, in order and with their types."""
    source = tables.small(tmp_path / "t")

    found = rows(copied(source, tmp_path / "copy"))

    assert len(found) == 40
    assert all(same(one, other) for one, other in zip(rows(source), found, strict=True))


@pytest.mark.parametrize("name", ["legacy-0.4.0", "legacy-0.7.6", "modern-0.13.1-images", "modern-0.13.1-seq-summary"])
def test_datasets_of_petastorm_are_copied(tmp_path: Path, corpus: Callable[[str], Path], name: str) -> None:
    """Datasets of any Petastorm version can be copied. Partition columns become columns of the files."""
    pytest.importorskip("cv2")
    source = corpus(f"petastorm/{name}").as_uri()

    found = rows(copied(source, tmp_path / "copy", partitions_count=3))

    assert all(same(one, other) for one, other in zip(rows(source), found, strict=True))
    assert [path.name for path in (tmp_path / "copy").iterdir() if path.is_dir()] == []


def test_cells_are_copied_as_they_are_stored(tmp_path: Path) -> None:
    """Encoded cells are copied byte by byte, and the files of the copy are not compressed."""
    pytest.importorskip("cv2")
    schema = ps.Schema("Photos", [ps.Field("id", np.int64), ps.Field("image", np.uint8, (16, 16, 3), ps.codecs.Jpeg())])
    noise = np.random.default_rng(0).integers(0, 255, (4, 16, 16, 3), dtype=np.uint8)
    ps.write(tmp_path / "t", schema, {"id": np.arange(4), "image": noise}, format=PetastormFormat())

    copied((tmp_path / "t").as_uri(), tmp_path / "copy")

    before, after = (pq.read_table(tmp_path / name, columns=["image"])["image"] for name in ("t", "copy"))
    assert before.to_pylist() == after.to_pylist()
    assert {footers(tmp_path / "copy")[0].row_group(0).column(at).compression for at in range(2)} == {"UNCOMPRESSED"}


def test_fields_are_chosen_by_regular_expressions(tmp_path: Path) -> None:
    """Regular expressions match whole field names, and the schema of the copy has only the chosen fields."""
    source = tables.small(tmp_path / "t")

    url = copied(source, tmp_path / "copy", field_regex=["id", "sc.*"])

    assert list(get_schema_from_dataset_url(url).fields) == ["id", "score"]
    assert [row._asdict() for row in rows(url)[:2]] == [{"id": 0, "score": 0}, {"id": 1, "score": 10}]
    assert ps.open(tmp_path / "copy").schema.names == ("id", "score")


def test_rows_with_nulls_are_dropped(tmp_path: Path) -> None:
    """`not_null_fields` drops rows with nulls, also in fields that are not copied."""
    source = tables.small(tmp_path / "t")
    full = [number for number in range(40) if number % 5 != 4]

    kept = copied(source, tmp_path / "kept", not_null_fields=["score", "id"])
    only = copied(source, tmp_path / "only", field_regex=["id"], not_null_fields=["score"], partitions_count=3)

    assert tables.ids(rows(kept)) == tables.ids(rows(only)) == full
    assert [footer.num_rows for footer in footers(tmp_path / "only")] == [10, 11, 11]


@pytest.mark.parametrize(("files", "found"), [(1, [40]), (3, [13, 13, 14]), (100, [1] * 40)])
def test_partitions_count_sets_the_number_of_files(tmp_path: Path, files: int, found: list[int]) -> None:
    """`partitions_count` sets the number of files. Their row counts differ by at most one, and no file is empty."""
    source = tables.small(tmp_path / "t")

    url = copied(source, tmp_path / "copy", partitions_count=files)

    assert [footer.num_rows for footer in footers(tmp_path / "copy")] == found
    assert len(load_row_groups(open_dataset(url))) == len(found)


def test_row_group_size_mb_limits_row_groups(tmp_path: Path) -> None:
    """`row_group_size_mb` limits the size of row groups, and `_common_metadata` stores their number for each file."""
    schema = ps.Schema("Large", [ps.Field("id", np.int64), ps.Field("raw", bytes)])
    given_rows = ({"id": number, "raw": bytes([number]) * (MEGABYTE // 4)} for number in range(16))
    ps.write(tmp_path / "t", schema, given_rows, format=PetastormFormat())

    copied((tmp_path / "t").as_uri(), tmp_path / "copy", row_group_size_mb=1)

    (footer,) = footers(tmp_path / "copy")
    stored = json.loads(pq.read_schema(tmp_path / "copy" / "_common_metadata").metadata[ROW_GROUPS_KEY])
    assert [footer.row_group(at).num_rows for at in range(footer.num_row_groups)] == [4, 4, 4, 4]
    assert list(stored.values()) == [4]


@given(
    sizes=st.lists(st.integers(0, 50), max_size=8),
    max_bytes=st.integers(1, 400),
    shares=st.none() | st.lists(st.integers(1, 40), min_size=1, max_size=5),
)
def test_no_row_is_lost_between_row_groups(sizes: list[int], max_bytes: int, shares: list[int] | None) -> None:
    """Cutting tables into row groups and files keeps all rows in order and within the size limits."""
    edges = np.cumsum([0, *sizes])
    pieces = [pa.table({"id": pa.array(range(edges[at], edges[at + 1]), pa.int64())}) for at in range(len(sizes))]
    whole = [*pieces, pa.table({"id": pa.array([], pa.int64())})]

    found = list(cut_row_groups(iter(whole), max_bytes, shares))

    assert [number for _, group in found for number in group["id"].to_pylist()] == list(range(edges[-1]))
    assert all(group.num_rows for _, group in found) or edges[-1] == 0
    assert all(group.nbytes <= max_bytes + 8 for _, group in found)
    if shares is not None:
        each = [sum(group.num_rows for file, group in found if file == number) for number in range(len(shares))]
        assert all(rows == share for rows, share in zip(each, shares, strict=True) if sum(shares) <= edges[-1])


def test_a_dataset_without_rows_is_copied(tmp_path: Path) -> None:
    """The copy of a dataset without rows has one file without rows and the schema of the source."""
    ps.write(tmp_path / "t", tables.SCHEMA, [], format=PetastormFormat())

    url = copied((tmp_path / "t").as_uri(), tmp_path / "copy", partitions_count=4)

    assert [footer.num_rows for footer in footers(tmp_path / "copy")] == [0]
    assert list(get_schema_from_dataset_url(url).fields) == ["id", "name", "vector", "image", "score"]


def test_columns_may_differ_from_the_schema(tmp_path: Path) -> None:
    """A column outside the schema is copied if all fields are. A field without a column stays null."""
    schema = ps.Schema("Some", [ps.Field("id", np.int64), ps.Field("gone", np.int64, nullable=True)])
    ps.write(tmp_path / "t", schema, {"id": [1, 2], "gone": [3, 4]}, format=PetastormFormat())
    (path,) = (tmp_path / "t").glob("*.parquet")
    pq.write_table(pa.table({"id": [1, 2], "more": ["a", "b"]}), path)
    store_keys(open_dataset((tmp_path / "t").as_uri()), {KEY: None})

    whole = copied((tmp_path / "t").as_uri(), tmp_path / "whole")
    some = copied((tmp_path / "t").as_uri(), tmp_path / "some", field_regex=["id"])

    assert [row._asdict() for row in rows(whole)] == [{"id": 1, "gone": None}, {"id": 2, "gone": None}]
    assert footers(tmp_path / "whole")[0].schema.names == ["id", "more"]
    assert footers(tmp_path / "some")[0].schema.names == ["id"]
    assert tables.ids(rows(some)) == [1, 2]


def test_an_existing_dataset_is_replaced_only_on_request(tmp_path: Path) -> None:
    """Copying over an existing dataset raises ValueError without `overwrite_output`."""
    source = tables.small(tmp_path / "t")
    target = tmp_path / "copy"
    tables.partitioned(target)

    with pytest.raises(ValueError, match=r"copy already exists; .* Give another, or overwrite_output=True"):
        copied(source, target)
    assert len(rows(copied(source, target, overwrite_output=True))) == 40
    assert sorted(path.name for path in target.iterdir() if path.is_dir()) == []


class Squash(DataframeColumnCodec):
    """A user's codec."""


def test_unknown_codecs_are_copied_with_all_fields(tmp_path: Path) -> None:
    """A copy of all fields keeps the stored schema with an unknown codec. Choosing fields raises ValueError."""
    place = tmp_path / "t"
    tables.small(place)
    common = pq.read_schema(place / "_common_metadata")
    theirs = common.metadata[UNISCHEMA_KEY].replace(b"petastorm.codecs\nNdarrayCodec", b"our.codecs\nSquash")
    assert theirs != common.metadata[UNISCHEMA_KEY]
    pq.write_metadata(common.with_metadata({UNISCHEMA_KEY: theirs}), place / "_common_metadata")

    url = copied(place.as_uri(), tmp_path / "copy")

    assert open_dataset(url).keys[UNISCHEMA_KEY] == theirs
    assert str(get_schema_from_dataset_url(url).vector.codec) == "our.codecs.Squash()"
    with pytest.raises(ValueError, match="Field 'vector' has the dtype"):
        copied(place.as_uri(), tmp_path / "some", field_regex=["vector"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"field_regex": ["nope"]}, r"\['nope'\]\) do not match any fields \(\['id', 'name'"),
        ({"not_null_fields": ["nope"]}, r"Fields \['nope'\] must not be null, and the dataset has \['id'"),
        ({"partitions_count": 0}, "partitions_count must be a positive integer or None, and is 0"),
        ({"row_group_size_mb": -1}, "row_group_size_mb must be a positive integer or None, and is -1"),
    ],
)
def test_invalid_arguments_raise(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    """Unknown fields and invalid sizes raise ValueError before anything is written."""
    source = tables.small(tmp_path / "t")

    with pytest.raises(ValueError, match=message):
        copied(source, tmp_path / "copy", **options)
    assert not (tmp_path / "copy").exists()


def test_only_datasets_of_petastorm_are_copied(tmp_path: Path) -> None:
    """A source without a Petastorm schema raises an error, and so does a target URL without a scheme."""
    url = tables.plain(tmp_path / "plain", {"id": [1]})

    with pytest.raises(PetastormMetadataError, match="Could not find _common_metadata file"):
        copied(url, tmp_path / "copy")
    with pytest.raises(ValueError, match="A scheme-less dataset url"):
        copied(tables.small(tmp_path / "t"), str(tmp_path / "copy"))


def test_the_command_has_the_arguments_of_petastorm(tmp_path: Path) -> None:
    """The command has Petastorm's arguments and defaults, and copies a dataset."""
    assert vars(args_parser().parse_args(["a", "b"])) == {
        "source_url": "a",
        "target_url": "b",
        "overwrite_output": False,
        "field_regex": None,
        "not_null_fields": None,
        "partition_count": None,
        "row_group_size_mb": None,
        "hdfs_driver": "libhdfs3",
        "master": None,
        "spark_session_config": None,
    }
    source, target = tables.small(tmp_path / "t"), (tmp_path / "copy").as_uri()
    _main([source, target, "--field-regex", "id", "name", "--not-null-fields", "score", "--partition-count", "2"])

    assert [row._asdict() for row in rows(target)[4:6]] == [{"id": 5, "name": "row 5"}, {"id": 6, "name": "row 6"}]


def test_options_of_spark_warn(tmp_path: Path) -> None:
    """Spark options are accepted with a warning and have no effect."""
    source, target = tables.small(tmp_path / "t"), (tmp_path / "copy").as_uri()

    with pytest.warns(UserWarning, match=r"^--master sets up Spark, and this command does its work on this machine"):
        _main([source, target, "--master", "local[2]"])
    with pytest.warns(UserWarning, match=r"^--master and --spark-session-config set up Spark.* Leave them out\.$"):
        _main([source, target, "--overwrite-output", "--master", "x", "--spark-session-config", "a=b"])
    assert len(rows(target)) == 40


READING = """
print(sorted((int(row.id), float(row.vector.sum()), int(row.image.sum())) for row in every(sys.argv[1])))
"""


@pytest.mark.peer
@pytest.mark.slow
def test_petastorm_itself_reads_copies(tmp_path: Path, ask_petastorm: Callable[..., list[str]]) -> None:
    """Petastorm 0.13.1 reads the values of the source from a copy."""
    pytest.importorskip("cv2")
    url = copied(tables.small(tmp_path / "t", rows=7, group=3), tmp_path / "copy", partitions_count=2)

    expected = [(number, 3.0 * number, 72 * number) for number in range(7)]
    assert str(expected) in ask_petastorm(READING, url)
