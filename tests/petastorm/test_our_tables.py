"""`make_reader` and `make_batch_reader` decode tables that `penstock.write` made, by their stored schema."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock import Field
from penstock.codecs import CellCodec, Jpeg, Npy, Npz, Png, Raw, Scalar, Tensor
from penstock.formats.delta import DeltaFormat
from penstock.formats.petastorm import PetastormFormat
from penstock.petastorm import TransformSpec, make_batch_reader, make_reader
from penstock.petastorm._impl.dataset import open_dataset
from penstock.petastorm.codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
)
from penstock.petastorm.etl.dataset_metadata import (
    PetastormMetadataError,
    get_schema,
    get_schema_from_dataset_url,
    infer_or_load_unischema,
    load_row_groups,
)
from penstock.petastorm.etl.petastorm_generate_metadata import generate_petastorm_metadata
from penstock.petastorm.etl.rowgroup_indexers import SingleFieldIndexer
from penstock.petastorm.etl.rowgroup_indexing import build_rowgroup_index
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import PredicateBase, in_lambda, in_set
from penstock.petastorm.reader import Reader
from penstock.petastorm.selectors import SingleIndexSelector
from penstock.petastorm.tools.copy_dataset import copy_dataset
from penstock.petastorm.unischema import UnischemaField
from penstock.petastorm.utils import decode_row
from penstock.petastorm.weighted_sampling_reader import WeightedSamplingReader


@dataclass(frozen=True)
class Halved(CellCodec):
    """A user's codec."""

    name = "halved-in-our-tables"

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return the bytes of the halved array."""
        return bytes((cell / 2).astype(field.dtype).tobytes())

    def decode(self, field: Field, cell: memoryview) -> Any:
        """Return the doubled array."""
        return np.frombuffer(cell, field.dtype) * 2


POOLS = ("dummy", "thread", "process")
ROWS = 12
FORMATS: dict[str, Any] = {"parquet": None, "delta": DeltaFormat()}

FIELDS = {
    "npy": Field("npy", np.float32, (4,), Npy()),
    "npz": Field("npz", np.int16, (2, 3), Npz()),
    "differing": Field("differing", np.float64, (None, 2), Npy()),
    "png": Field("png", np.uint8, (4, 5, 3), Png()),
    "grey": Field("grey", np.uint16, (4, 4), Png()),
    "jpeg": Field("jpeg", np.uint8, (8, 8, 3), Jpeg(95)),
    "raw": Field("raw", np.int32, (3,), Raw()),
    "raw_differing": Field("raw_differing", np.int32, (None,), Raw()),
    "tensor": Field("tensor", np.float32, (2, 3), Tensor()),
    "tensor_flat": Field("tensor_flat", np.int32, (3,)),
    "null_npy": Field("null_npy", np.float32, (2,), Npy(), nullable=True),
    "null_tensor": Field("null_tensor", np.float32, (2, 2), Tensor(), nullable=True),
    "null_whole_tensor": Field("null_whole_tensor", np.int8, (2,), Tensor(), nullable=True),
    "null_whole": Field("null_whole", np.int32, nullable=True),
    "null_float": Field("null_float", np.float64, nullable=True),
    "null_bool": Field("null_bool", np.bool_, nullable=True),
    "null_text": Field("null_text", str, nullable=True),
    "texts": Field("texts", str, (3,), Npy()),
    "text": Field("text", str),
    "binary": Field("binary", bytes),
    "number": Field("number", Decimal, (), Scalar("decimal128(10, 2)")),
    "u16": Field("u16", np.uint16),
    "u32": Field("u32", np.uint32),
    "u64": Field("u64", np.uint64),
    "half": Field("half", np.float16),
    "null_duration": Field("null_duration", "timedelta64[us]", nullable=True),
    "moment": Field("moment", "datetime64[us]"),
    "nanos": Field("nanos", "datetime64[ns]", nullable=True),
}
NOT_IN_DELTA = {"u16", "u32", "u64", "half", "null_duration", "moment", "nanos"}
"""Fields of types that Delta does not have. It stores unsigned integers as wider integers, and reports that."""


def value(field: Field, number: int) -> Any:
    """Return the value of a field in a row."""
    if field.nullable and number % 4 == 1:
        return None
    shape = tuple(number % 3 + 1 if size is None else size for size in field.shape)
    if field.dtype.kind == "U":
        return np.full(shape, f"é{number}") if shape else f"é{number}"
    if field.dtype.kind == "O":
        return Decimal(number) / 4
    if field.dtype.kind == "S":
        return b"%d\0x" % number
    found = np.full(shape, number).astype(field.dtype)
    return found if shape else found[()]


def written(place: Path, *fields: Field, rows: int = ROWS, **options: Any) -> str:
    """Write a table of row groups of five rows, and return its URL."""
    every = [Field("id", np.int64), *fields]
    given = ({"id": number, **{field.name: value(field, number) for field in fields}} for number in range(rows))
    ps.write(place, ps.Schema("Ours", every), given, row_group_rows=5, **options)
    return place.as_uri()


def check(found: Any, field: Field, number: int) -> None:
    """Compare a value with what was written."""
    expected = value(field, number)
    if expected is None:
        assert found is None or np.isnat(found) if field.dtype.kind in "mM" else found is None or np.isnan(found)
    elif field.shape:
        assert (found.dtype.kind, found.shape) == (expected.dtype.kind, expected.shape)
        assert field.dtype.kind == "U" or found.dtype == field.dtype
        assert (found == expected).all()
    else:
        assert found == expected


def rows_of(url: str, **options: Any) -> list[Any]:
    """Return all rows, in stored order."""
    with make_reader(url, **{"shuffle_row_groups": False, "reader_pool_type": "dummy", **options}) as reader:
        return list(reader)


def batches_of(url: str | list[str], **options: Any) -> list[Any]:
    """Return all batches, in stored order."""
    with make_batch_reader(url, **{"shuffle_row_groups": False, "reader_pool_type": "dummy", **options}) as reader:
        return list(reader)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_written_tables_are_read_decoded(tmp_path: Path, name: str, kind: str) -> None:
    """Rows and batches have the dtype and the shape of the field, in both formats, and nothing warns."""
    field = FIELDS[name]
    if kind == "delta" and name in NOT_IN_DELTA:
        pytest.skip("Delta has no such type")
    url = written(tmp_path / "t", field, format=FORMATS[kind])

    rows, batches = rows_of(url), batches_of(url)
    cells = [cell for batch in batches for cell in getattr(batch, name)]

    assert [row.id for row in rows] == [number for batch in batches for number in batch.id] == list(range(ROWS))
    for number in range(ROWS):
        check(getattr(rows[number], name), field, number)
        check(cells[number], field, number)
    unischema_field = get_schema_from_dataset_url(url).fields[name]
    assert (unischema_field.name, unischema_field.shape, unischema_field.nullable) == (name, field.shape, field.nullable)
    assert unischema_field.numpy_dtype is (Decimal if field.dtype.kind == "O" else field.dtype.type)
    if field.is_dense and not field.nullable and field.dtype.kind != "M":
        assert {(getattr(batch, name).dtype, getattr(batch, name).shape[1:]) for batch in batches} == {
            (field.dtype, field.shape)
        }


@pytest.mark.parametrize("pool", POOLS)
def test_all_pools_decode(tmp_path: Path, pool: str) -> None:
    """All pools return the same decoded rows and batches."""
    fields = [FIELDS[name] for name in ("npy", "differing", "png", "tensor", "null_tensor", "null_npy", "raw", "u16")]
    url = written(tmp_path / "t", *fields)
    options: dict[str, Any] = {"reader_pool_type": pool, "workers_count": 2}

    rows, batches = rows_of(url, **options), batches_of(url, **options)

    assert [len(batch.id) for batch in batches] == [5, 5, 2]
    assert batches[0].npy.shape == (5, 4)
    assert batches[0].differing.dtype == batches[0].null_tensor.dtype == object
    for field in fields:
        cells = [cell for batch in batches for cell in getattr(batch, field.name)]
        for number in range(ROWS):
            check(getattr(rows[number], field.name), field, number)
            check(cells[number], field, number)


@pytest.mark.parametrize("name", ["npy", "null_npy", "null_tensor", "differing", "raw_differing", "nanos"])
@pytest.mark.parametrize("size", [2, 7, 100])
def test_batches_of_one_size_are_decoded(tmp_path: Path, name: str, size: int) -> None:
    """Batches join row groups with and without nulls, and with arrays of different shapes."""
    field = FIELDS[name]
    rows = [{"id": number, name: value(field, number)} for number in (1, 2, 4, 3, 0, 7, 5)]
    ps.write(tmp_path / "t", ps.Schema("Ours", [Field("id", np.int64), field]), rows, row_group_rows=1)

    batches = batches_of((tmp_path / "t").as_uri(), batch_size=size)

    assert [len(batch.id) for batch in batches][:-1] == [size] * (len(batches) - 1)
    for batch in batches:
        for number, cell in zip(batch.id.tolist(), getattr(batch, name), strict=True):
            check(cell, field, number)


def test_the_stored_schema_is_used(tmp_path: Path) -> None:
    """The schema keeps its name and the order of its fields. Codecs are Petastorm's if it has them."""
    url = written(tmp_path / "t", *(FIELDS[name] for name in ("npy", "npz", "png", "u16", "tensor", "raw")))

    schema = get_schema_from_dataset_url(url)
    (row, *_) = rows_of(url)

    assert type(row).__name__ == "Ours_view"
    assert list(schema.fields) == list(row._fields) == ["id", "npy", "npz", "png", "u16", "tensor", "raw"]
    kinds = [type(field.codec) for field in schema.fields.values()]
    assert kinds[:5] == [ScalarCodec, NdarrayCodec, CompressedNdarrayCodec, CompressedImageCodec, ScalarCodec]
    assert [str(schema.fields[name].codec) for name in ("tensor", "raw")] == ["Tensor()", "Raw()"]
    with Reader(None, dataset=open_dataset(url)) as reader:
        assert str(get_schema(reader.dataset)) == str(infer_or_load_unischema(reader.dataset)) == str(schema)
        assert len(load_row_groups(reader.dataset)) == 3


@pytest.mark.parametrize("name", ["tensor", "raw", "half", "npy", "text", "number"])
def test_codecs_of_the_schema_encode_and_decode(tmp_path: Path, name: str) -> None:
    """The codecs of a schema encode and decode, also those that Petastorm lacks. `decode_row` uses them."""
    field = FIELDS[name]
    schema = get_schema_from_dataset_url(written(tmp_path / "t", field))
    codec = schema.fields[name].codec

    stored = codec.encode(schema.fields[name], value(field, 3))

    assert isinstance(codec, DataframeColumnCodec)
    check(decode_row({name: stored}, schema)[name], field, 3)


def test_plain_parquet_of_others_is_read_with_warnings(tmp_path: Path) -> None:
    """`make_reader` warns about plain Parquet, skips columns of unsupported types, and finds no stored schema."""
    pq.write_table(pa.table({"id": [1, 2], "half": np.zeros(2, np.float16)}), tmp_path / "part-0.parquet")
    url = tmp_path.as_uri()

    with (
        pytest.warns(UserWarning, match="supports reading only Petastorm datasets"),
        pytest.warns(UserWarning, match="Column 'half' has an unsupported type"),
    ):
        rows = rows_of(url)
    with pytest.raises(PetastormMetadataError, match="Could not find _common_metadata"):
        get_schema_from_dataset_url(url)

    assert [row._fields for row in rows] == [("id",), ("id",)]


def test_petastorm_tables_are_decoded_in_batches_on_request(tmp_path: Path) -> None:
    """Rows of a Petastorm table are decoded. Batches are bytes with a warning, unless `decode=True`."""
    fields = [FIELDS[name] for name in ("npy", "npz", "differing", "png", "u16", "null_npy")]
    url = written(tmp_path / "t", *fields, format=PetastormFormat())

    rows, batches = rows_of(url), batches_of(url, decode=True)
    with pytest.warns(UserWarning, match="decode=True"):
        raw = batches_of(url)

    for field in fields:
        cells = [cell for batch in batches for cell in getattr(batch, field.name)]
        for number in range(ROWS):
            check(getattr(rows[number], field.name), field, number)
            check(cells[number], field, number)
    assert raw[0].npy[0].startswith(b"\x93NUMPY")


def test_an_adopted_schema_is_used(tmp_path: Path) -> None:
    """An adopted schema replaces the schema of a Petastorm table, both for decoding and for field types."""
    url = written(tmp_path / "t", FIELDS["npy"], format=PetastormFormat())
    ps.adopt(tmp_path / "t", ps.Schema("Other", [Field("id", np.int64), Field("npy", np.float32, (None,), Npy())]))

    schema = get_schema_from_dataset_url(url)

    assert schema.npy == UnischemaField("npy", np.float32, (None,), None, nullable=False)
    assert [row.npy.shape for row in rows_of(url)] == [(4,)] * ROWS
    assert [batch.npy.shape for batch in batches_of(url, decode=True)] == [(5, 4), (5, 4), (2, 4)]


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (["npy", "id"], ["id", "npy"]),
        (["t.*"], ["tensor", "text"]),
        ("npy", ["npy"]),
        ([UnischemaField("tensor", np.float32, (2, 3)), "id"], ["tensor", "id"]),
    ],
)
def test_schema_fields_choose_fields(tmp_path: Path, selection: Any, names: list[str]) -> None:
    """`schema_fields` accepts names, patterns and fields."""
    url = written(tmp_path / "t", *(FIELDS[name] for name in ("npy", "tensor", "text")))

    rows, batches = rows_of(url, schema_fields=selection), batches_of(url, schema_fields=selection)

    assert [list(found[0]._fields) for found in (rows, batches)] == [names, names]
    for name in set(names) - {"id"}:
        check(getattr(rows[3], name), FIELDS[name], 3)
        check(getattr(batches[0], name)[3], FIELDS[name], 3)


def test_predicates_see_decoded_values(tmp_path: Path) -> None:
    """Predicates get decoded values: single rows, or a data frame with arrays, and None for nulls."""
    url = written(tmp_path / "t", *(FIELDS[name] for name in ("npy", "tensor", "null_tensor", "u16")))
    of_rows = in_lambda(
        ["npy", "null_tensor"], lambda npy, tensor: tensor is not None and npy[0] > 2 and tensor.shape == (2, 2)
    )

    class OfBatches(PredicateBase):
        def get_fields(self) -> set[str]:
            return {"npy", "null_tensor"}

        def do_include(self, values: Any) -> Any:
            found = values["null_tensor"].map(lambda cell: cell is not None and cell.shape == (2, 2))
            return values["npy"].map(lambda cell: bool(cell[0] > 2)) & found

    rows = rows_of(url, predicate=of_rows)
    batches = batches_of(url, predicate=OfBatches())

    expected = [number for number in range(3, ROWS) if number % 4 != 1]
    assert [row.id for row in rows] == expected
    assert [number for batch in batches for number in batch.id] == expected
    assert [batch.tensor.shape[1:] for batch in batches] == [(2, 3)] * 3


def test_transform_functions_change_decoded_values(tmp_path: Path) -> None:
    """Fields that a transform function does not change keep dtype and shape, also with variable sizes and nulls."""
    names = ("npy", "differing", "tensor", "null_tensor", "png", "u16")
    url = written(tmp_path / "t", *(FIELDS[name] for name in names))
    edit = [("npy", np.float64, (2,), False)]

    def changed(npy: Any) -> Any:
        return npy[:2].astype(np.float64) * 2

    rows = rows_of(url, transform_spec=TransformSpec(lambda row: {**row, "npy": changed(row["npy"])}, edit_fields=edit))
    spec = TransformSpec(lambda frame: frame.assign(npy=frame["npy"].map(changed)), edit_fields=edit, removed_fields=["png"])
    batches = batches_of(url, transform_spec=spec)

    assert rows[3].npy.tolist() == batches[0].npy[3].tolist() == [6, 6]
    assert (batches[0].npy.dtype, batches[0].u16.dtype, batches[0].tensor.shape) == (np.float64, np.uint16, (5, 2, 3))
    for name in ("differing", "tensor", "null_tensor", "u16"):
        cells = [cell for batch in batches for cell in getattr(batch, name)]
        for number in range(ROWS):
            check(cells[number], FIELDS[name], number)
    assert "png" not in batches[0]._fields


def test_windows_contain_decoded_values(tmp_path: Path) -> None:
    """Each offset of a window has its fields, decoded."""
    url = written(tmp_path / "t", FIELDS["npy"], FIELDS["tensor"])
    ngram = NGram({0: ["id", "npy"], 1: ["id", "tensor"]}, delta_threshold=1, timestamp_field="id")

    windows = rows_of(url, schema_fields=ngram)

    assert [(window[0].id, window[1].id) for window in windows] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
        (5, 6),
        (6, 7),
        (7, 8),
        (8, 9),
        (10, 11),
    ]
    check(windows[2][0].npy, FIELDS["npy"], 2)
    check(windows[2][1].tensor, FIELDS["tensor"], 3)


def test_readers_with_a_cache_decode(tmp_path: Path) -> None:
    """With a cache, both epochs have the same decoded rows and batches."""
    fields = [FIELDS[name] for name in ("npy", "tensor", "null_tensor", "raw", "png", "u64")]
    url = written(tmp_path / "t", *fields)
    cached: dict[str, Any] = {
        "cache_type": "local-disk",
        "cache_location": str(tmp_path / "cache"),
        "cache_size_limit": 10**8,
        "cache_row_size_estimate": 100,
        "num_epochs": 2,
    }

    rows, batches = rows_of(url, **cached), batches_of(url, **cached)

    cells = {field.name: [cell for batch in batches for cell in getattr(batch, field.name)] for field in fields}
    for at, row in enumerate(rows):
        for field in fields:
            check(getattr(row, field.name), field, at % ROWS)
            check(cells[field.name][at], field, at % ROWS)
    assert len(rows) == 2 * ROWS


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_partition_columns_have_the_type_of_their_field(tmp_path: Path, kind: str) -> None:
    """A predicate on a partition column chooses files, and gets values of the field's type."""
    parts = [Field("id", np.int64), FIELDS["npy"], Field("day", dt.date), Field("level", np.int16)]
    rows = [{"id": n, "npy": value(FIELDS["npy"], n), "day": dt.date(2024, 1, 1 + n % 2), "level": n % 2} for n in range(8)]
    for column in ("day", "level"):
        ps.write(tmp_path / column, ps.Schema("Parts", parts), rows, partition_by=[column], format=FORMATS[kind])
    chosen = {"day": np.datetime64("2024-01-02"), "level": np.int16(1)}

    for column, one in chosen.items():
        url = (tmp_path / column).as_uri()
        found = rows_of(url, predicate=in_set([one], column))

        assert sorted(int(row.id) for row in found) == [1, 3, 5, 7]
        assert {type(getattr(row, column)) for row in found} == {type(one)}
        assert {number for batch in batches_of(url) for number in batch.id} == set(range(8))


def test_single_files_are_decoded_by_their_own_schema(tmp_path: Path) -> None:
    """Each file that Penstock writes stores its schema, so it can be read alone."""
    written(tmp_path / "t", FIELDS["npy"])
    (file,) = (tmp_path / "t").glob("*.parquet")

    rows, batches = rows_of(file.as_uri()), batches_of([file.as_uri()])

    check(rows[3].npy, FIELDS["npy"], 3)
    assert batches[0].npy.shape == (5, 4)


def test_a_delta_table_is_read_by_its_log(tmp_path: Path) -> None:
    """Files that were overwritten are not read, and files that were appended are."""
    url = written(tmp_path / "t", FIELDS["npy"], FIELDS["tensor"], format="delta")
    written(tmp_path / "t", FIELDS["npy"], FIELDS["tensor"], rows=3, format="delta", mode="overwrite")
    written(tmp_path / "t", FIELDS["npy"], FIELDS["tensor"], rows=2, format="delta", mode="append")

    rows, batches = rows_of(url), batches_of(url)

    assert sorted(int(row.id) for row in rows) == sorted(int(number) for batch in batches for number in batch.id)
    assert sorted(int(row.id) for row in rows) == [0, 0, 1, 1, 2]
    with make_reader(url, cur_shard=0, shard_count=2, num_epochs=2) as reader:
        assert len(reader) == len(list(reader))


@pytest.mark.parametrize("make", [True, False])
def test_deleted_rows_of_a_delta_table_are_not_read(tmp_path: Path, make: bool) -> None:  # noqa: FBT001 - a parameter
    """Rows, batches and lengths exclude deleted rows, also with a predicate on partition columns."""
    url = written(tmp_path / "t", FIELDS["npy"], Field("part", np.int16), rows=4, format="delta", partition_by=["part"])
    dataset = open_dataset(url)
    places = {int(name): at for at, name in enumerate(dataset.raw.files.partitions["part"].to_pylist())}
    files = replace(dataset._stored.files, deletes={places[3]: np.array([0])})
    dataset.__dict__["_stored"] = replace(dataset._stored, files=files)

    with Reader(None, dataset=dataset, is_batched_reader=make, shuffle_row_groups=False) as every:
        length, found = len(every), list(every)
    with Reader(None, dataset=dataset, is_batched_reader=make, predicate=in_set([0, 3], "part")) as some:
        left = [int(np.asarray(item.id).item()) for item in some]

    assert length == len(found) == 3
    assert left == [0]


def test_storing_petastorm_metadata_in_a_delta_table_raises(tmp_path: Path) -> None:
    """Storing Petastorm metadata in a Delta table raises ValueError, since Petastorm ignores the Delta log."""
    url = written(tmp_path / "t", FIELDS["npy"], format="delta")

    with pytest.raises(ValueError, match=r"is a table of the format delta, whose log names its files.*Copy it first"):
        generate_petastorm_metadata(None, url)
    with pytest.raises(ValueError, match="is a table of the format delta"):
        build_rowgroup_index(url, None, [SingleFieldIndexer("by id", "id")])


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("names", [["npy", "png"], ["npy", "tensor", "raw", "null_tensor"]])
def test_copies_are_decoded_as_their_source(tmp_path: Path, kind: str, names: list[str]) -> None:
    """A copy has Penstock's schema, and also Petastorm's if Petastorm can represent all fields."""
    fields = [FIELDS[name] for name in names]
    source = written(tmp_path / "t", *fields, format=FORMATS[kind])
    target = (tmp_path / "copy").as_uri()

    copy_dataset(None, source, target, None, None, overwrite_output=False, partitions_count=2, row_group_size_mb=None)

    for field in fields:
        for number, row in enumerate(rows_of(target)):
            check(getattr(row, field.name), field, number)
    keys = pq.read_schema(tmp_path / "copy" / "_common_metadata").metadata
    assert (b"dataset-toolkit.unischema.v1" in keys) is ("tensor" not in names)
    check(ps.open(tmp_path / "copy")[3]["npy"], FIELDS["npy"], 3)


def test_petastorm_metadata_is_generated_from_the_stored_schema(tmp_path: Path) -> None:
    """Generated metadata makes a Petastorm table. A field that Petastorm cannot represent raises an error."""
    url = written(tmp_path / "t", FIELDS["npy"], FIELDS["png"])
    other = written(tmp_path / "o", FIELDS["tensor"])

    generate_petastorm_metadata(None, url)

    assert PetastormFormat().recognises(open_dataset(url).place)
    check(rows_of(url)[3].npy, FIELDS["npy"], 3)
    with pytest.raises(ps.errors.ArgumentError, match=r"Field 'tensor' has .*penstock\.codecs\.Tensor\(\)"):
        generate_petastorm_metadata(None, other)


def test_indexes_choose_row_groups_of_our_tables(tmp_path: Path) -> None:
    """Indexes can be built on our tables, and choose their row groups."""
    url = written(tmp_path / "t", FIELDS["npy"])

    build_rowgroup_index(url, None, [SingleFieldIndexer("by id", "id")])

    assert [row.id for row in rows_of(url, rowgroup_selector=SingleIndexSelector("by id", [7]))] == [5, 6, 7, 8, 9]


def test_readers_of_our_tables_are_mixed(tmp_path: Path) -> None:
    """A table of Penstock and one of Petastorm with the same fields can be mixed."""
    one, two = written(tmp_path / "a", FIELDS["npy"]), written(tmp_path / "b", FIELDS["npy"], format=PetastormFormat())

    with WeightedSamplingReader([make_reader(one), make_reader(two)], [0.5, 0.5]) as mixed:
        rows = list(mixed)

    assert rows
    for row in rows:
        check(row.npy, FIELDS["npy"], int(row.id))


@pytest.mark.torch
def test_loaders_make_tensors_of_our_tables(tmp_path: Path) -> None:
    """All loaders make tensors, of rows and of batches."""
    torch = pytest.importorskip("torch")
    from penstock.petastorm.pytorch import BatchedDataLoader, DataLoader, InMemBatchedDataLoader

    url = written(tmp_path / "t", FIELDS["npy"], FIELDS["tensor"], FIELDS["png"], FIELDS["u16"])
    for make in (make_reader, make_batch_reader):
        for kind in (DataLoader, BatchedDataLoader, InMemBatchedDataLoader):
            with kind(make(url, shuffle_row_groups=False), batch_size=4) as loader:
                batches = list(loader)

            assert [tuple(batch["tensor"].shape) for batch in batches] == [(4, 2, 3)] * 3
            assert batches[0]["npy"].dtype == torch.float32
            assert batches[0]["png"].shape == (4, 4, 5, 3)
            assert torch.cat([batch["npy"][:, 0] for batch in batches]).tolist() == list(range(ROWS))


def test_an_unknown_codec_is_copied_unchanged(tmp_path: Path) -> None:
    """A column of a user's codec can be read from the table and from its copy, if the class is passed."""
    url = written(tmp_path / "t", Field("own", np.float32, (2,), Halved()))
    target = (tmp_path / "copy").as_uri()

    copy_dataset(None, url, target, None, None, overwrite_output=False, partitions_count=None, row_group_size_mb=None)

    for place in (url, target):
        assert [row.own.tolist() for row in rows_of(place, codecs=[Halved])] == [[n, n] for n in range(ROWS)]
        assert {batch.own.shape[1:] for batch in batches_of(place, codecs=[Halved])} == {(2,)}
        with pytest.raises(RuntimeError, match="was written with the unknown codec 'halved-in-our-tables'"):
            rows_of(place)


READING = """
for row in sorted(every(sys.argv[1]), key=lambda row: row.id):
    print([row.npy.tolist(), row.npy.dtype.str, row.png.shape, str(row.text), int(row.u16), row.null_whole is None])
"""


@pytest.mark.peer
@pytest.mark.parametrize("way", ["copied", "described"])
def test_petastorm_itself_reads_our_tables(tmp_path: Path, way: str, ask_petastorm: Callable[..., list[str]]) -> None:
    """Petastorm reads a copy of our table, and the table itself after metadata was generated."""
    source = url = written(tmp_path / "t", *(FIELDS[name] for name in ("npy", "png", "text", "u16", "null_whole")))
    if way == "copied":
        url = (tmp_path / "copy").as_uri()
        copy_dataset(None, source, url, None, None, overwrite_output=False, partitions_count=2, row_group_size_mb=None)
    else:
        generate_petastorm_metadata(None, url)

    found = [line for line in ask_petastorm(READING, url) if line.startswith("[")]

    assert found == [str([[float(n)] * 4, "<f4", (4, 5, 3), f"é{n}", n, n % 4 == 1]) for n in range(ROWS)]


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.filterwarnings("ignore:No matching data is available")
def test_tables_of_few_rows(tmp_path: Path, rows: int) -> None:
    """Tables of no row and of one row can be read."""
    url = written(tmp_path / "t", FIELDS["npy"], FIELDS["tensor"], FIELDS["null_tensor"], rows=rows)

    assert len(rows_of(url)) == len(batches_of(url)) == rows


def test_field_names_that_a_row_cannot_have_raise(tmp_path: Path) -> None:
    """A field name that is no identifier raises ValueError. The other fields can be read."""
    schema = ps.Schema("with a space", [Field("id", np.int64), Field("my column", np.float32, (2,), Npy())])
    ps.write(tmp_path / "t", schema, [{"id": 1, "my column": np.zeros(2, np.float32)}])
    url = (tmp_path / "t").as_uri()

    with pytest.raises(ValueError, match=r"cannot have a field called 'my column'; expected .* schema_fields=\[\.\.\.\]"):
        rows_of(url)

    (row,) = rows_of(url, schema_fields=["id"])
    assert type(row).__name__ == "inferred_schema_view_view"


def test_timestamps_outside_nanoseconds_keep_their_unit(tmp_path: Path) -> None:
    """A batch with a timestamp outside the range of nanoseconds keeps the stored unit."""
    schema = ps.Schema("Times", [Field("at", "datetime64[us]", nullable=True)])
    far = np.datetime64("0001-01-01", "us")
    ps.write(tmp_path / "t", schema, [{"at": far}, {"at": None}, {"at": np.datetime64(5, "us")}])

    (batch,) = batches_of((tmp_path / "t").as_uri())

    assert batch.at.dtype == "datetime64[us]"
    assert (batch.at[0], np.isnat(batch.at[1]), batch.at[2]) == (far, True, np.datetime64(5, "us"))
