"""Opening Petastorm datasets: real ones of several versions, and small ones that the tests make."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import petastorm_pickles
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock._engine.storage.filesystem import locate
from penstock._open import recognised
from penstock.errors import ArgumentError, DataError
from penstock.formats.parquet import ParquetFormat
from penstock.formats.petastorm import PetastormFacts, PetastormFormat, SparkType, StoredCodec, ValueIndex
from penstock.formats.petastorm.schema import StoredField, StoredSchema, pickle_unischema

Corpus = Callable[[str], Path]

UNISCHEMA, ROW_GROUPS, INDEX = (
    b"dataset-toolkit.unischema.v1",
    b"dataset-toolkit.num_row_groups_per_file.v1",
    b"dataset-toolkit.rowgroups_index.v1",
)
DATASETS = (
    *("legacy-0.4.0", "legacy-0.5.1", "legacy-0.7.6", "modern-0.13.1-images", "modern-0.13.1-rowgroups"),
    *("modern-0.13.1-seq", "modern-0.13.1-seq-summary"),
)
EVIL = b"cbuiltins\neval\n(S'6*7'\ntR."


def put(place: Path, table: pa.Table, **options: Any) -> Path:
    """Write a data file and create its parent directories."""
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, place, **options)
    return place


def describe(place: Path, schema: pa.Schema, metadata: Mapping[bytes, bytes]) -> Path:
    """Write `_common_metadata`, as Petastorm does."""
    pq.write_metadata(schema.with_metadata({**(schema.metadata or {}), **metadata}), place / "_common_metadata")
    return place


def dataset(place: Path, table: pa.Table, *fields: StoredField) -> Path:
    """Write a dataset of one file with a Unischema."""
    put(place / "part-0.parquet", table)
    return describe(place, table.schema, {UNISCHEMA: pickle_unischema(StoredSchema("Own", fields))})


def scalar(name: str, dtype: Any, kind: str = "LongType", *, nullable: bool = False, **options: Any) -> StoredField:
    """Return a field of single values."""
    codec = StoredCodec("petastorm.codecs.ScalarCodec", {"spark_type": SparkType(kind, options)})
    return StoredField(name, dtype, (), codec, nullable)


def array(name: str, dtype: Any, shape: tuple[int | None, ...], codec: str = "NdarrayCodec") -> StoredField:
    """Return a field of arrays."""
    return StoredField(name, dtype, shape, StoredCodec(f"petastorm.codecs.{codec}"), nullable=False)


def npy(cell: Any) -> bytes:
    """Return the bytes of `numpy.save`."""
    file = io.BytesIO()
    np.save(file, np.asarray(cell))
    return file.getvalue()


def npz(cell: Any) -> bytes:
    """Return the bytes of `numpy.savez_compressed`, as Petastorm calls it."""
    file = io.BytesIO()
    np.savez_compressed(file, arr=np.asarray(cell))
    return file.getvalue()


def everything(image: Any, photo: Any) -> pa.Table:
    """Return one row for the schema of the stored pickles, in the types that Spark stores."""
    png, jpeg = ps.codecs.Png(), ps.codecs.Jpeg(95)
    cells = {
        "id": (2**60, pa.int64()),
        "small": (200, pa.int16()),
        "flag": (True, pa.bool_()),
        "half": (0.5, pa.float32()),
        "text": ("grün", pa.string()),
        "blob": (b"\x00\xff", pa.binary()),
        "day": (dt.date(2024, 5, 6), pa.date32()),
        "at": (dt.datetime(2024, 5, 6, 7, 8), pa.timestamp("us", tz="UTC")),  # noqa: DTZ001 - the type has the zone
        "price": (Decimal("1.50"), pa.decimal128(10, 2)),
        "bare": (1.5, pa.float64()),
        "whole": (7, pa.int32()),
        "list": ([1, 2], pa.list_(pa.int32())),
        "array": (npy(np.ones((2, 3), np.float32)), pa.binary()),
        "ragged": (npz(np.ones((1, 4), np.uint16)), pa.binary()),
        "moments": (npy(np.array(["2024-05-06T00:00:01"], "datetime64[s]")), pa.binary()),
        "words": (npy(np.array(["a", "ü"])), pa.binary()),
        "image": (png.encode(ps.Field("image", np.uint8, image.shape, png), image), pa.binary()),
        "photo": (jpeg.encode(ps.Field("photo", np.uint8, photo.shape, jpeg), photo), pa.binary()),
        "scan": (b"II*\0", pa.binary()),
    }
    return pa.table({name: pa.array([cell], kind) for name, (cell, kind) in cells.items()})


@pytest.mark.parametrize("protocol", petastorm_pickles.EVERYTHING)
def test_a_dataset_is_decoded_by_its_pickled_schema(tmp_path: Path, protocol: int) -> None:
    """Every codec decodes to the dtype of the pickled schema, and not to the type that Spark stores."""
    pytest.importorskip("cv2")
    image = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)
    photo = np.full((4, 6, 3), (250, 120, 10), np.uint8)
    table = everything(image, photo)
    put(tmp_path / "part-0.parquet", table)
    describe(tmp_path, table.schema, {UNISCHEMA: base64.b64decode(petastorm_pickles.EVERYTHING[protocol])})
    ds = ps.open(tmp_path)

    row = ds.select(*(name for name in ds.schema.names if name != "scan"))[0]
    assert ds.schema.names == tuple(table.schema.names)
    dtypes = {"id": "int64", "small": "uint8", "flag": "bool", "half": "float16", "bare": "float64", "whole": "int64"}
    assert {name: row[name].dtype for name in dtypes} == {name: np.dtype(dtype) for name, dtype in dtypes.items()}
    assert (row["id"], row["small"], row["flag"], row["half"], row["bare"], row["whole"]) == (2**60, 200, True, 0.5, 1.5, 7)
    assert (row["text"], row["blob"], row["price"]) == ("grün", b"\x00\xff", Decimal("1.50"))
    assert (row["day"], row["at"]) == (np.datetime64("2024-05-06"), np.datetime64("2024-05-06T07:08"))
    assert row["list"].tolist() == [1, 2]
    assert row["array"].tolist() == np.ones((2, 3)).tolist()
    assert row["ragged"].tolist() == [[1, 1, 1, 1]]
    assert (row["moments"].dtype, row["moments"].tolist()) == (
        np.dtype("datetime64[s]"),
        [dt.datetime(2024, 5, 6, 0, 0, 1)],  # noqa: DTZ001 - NumPy has no zones
    )
    assert row["words"].tolist() == ["a", "ü"]
    assert np.array_equal(row["image"], image)
    assert int(np.abs(row["photo"].astype(int) - photo).max()) < 8


def test_images_of_an_unknown_format_are_reported(tmp_path: Path) -> None:
    """Reading an image of an unknown format raises DataError, which names the codec; other columns are read."""
    codec = StoredCodec("petastorm.codecs.CompressedImageCodec", {"image_codec": ".tiff", "quality": 80})
    scan = StoredField("scan", np.uint16, (0, 0), codec, nullable=False)
    ds = ps.open(dataset(tmp_path, pa.table({"id": [1], "scan": [b"II*\0"]}), scalar("id", np.int64), scan))

    assert ds.select("id")[0]["id"] == 1
    with pytest.raises(
        DataError, match=re.escape("written with the unknown codec \"petastorm.codecs.CompressedImageCodec('tiff')\"")
    ):
        ds[0]


@pytest.mark.parametrize(
    ("dtype", "shape", "options", "wanted"),
    [
        (np.float32, (2, 2), {"image_codec": ".png", "quality": 80}, "CompressedImageCodec('png')"),
        (np.uint8, (2,), {"image_codec": ".jpeg", "quality": 80}, "CompressedImageCodec('jpeg')"),
        (np.uint8, (2, 2), {}, "CompressedImageCodec('None')"),
    ],
)
def test_image_codecs_that_do_not_fit_their_field_are_reported(
    tmp_path: Path, dtype: Any, shape: tuple[int, ...], options: dict[str, Any], wanted: str
) -> None:
    """Reading a field that its image codec cannot store raises DataError, which names the codec; other columns are read."""
    field = StoredField("x", dtype, shape, StoredCodec("petastorm.codecs.CompressedImageCodec", options), nullable=False)
    ds = ps.open(dataset(tmp_path, pa.table({"id": [1], "x": [b"x"]}), scalar("id", np.int64), field))

    assert ds.select("id")[0]["id"] == 1
    with pytest.raises(DataError, match=re.escape(wanted)):
        ds[0]


@pytest.mark.parametrize("ending", [".jpg", ".jpeg", ".jpe", ".JPE"])
def test_every_file_ending_of_jpeg_is_recognised(tmp_path: Path, ending: str) -> None:
    """Every file ending that OpenCV has for JPEG gives the codec Jpeg."""
    codec = StoredCodec("petastorm.codecs.CompressedImageCodec", {"image_codec": ending, "quality": 80})
    field = StoredField("x", np.uint8, (2, 2, 3), codec, nullable=False)

    assert ps.open(dataset(tmp_path, pa.table({"x": [b"x"]}), field)).schema["x"].codec == ps.codecs.Jpeg()


def test_an_invalid_quality_is_ignored(tmp_path: Path) -> None:
    """An invalid quality is ignored, because it only says how an image was written."""
    codec = StoredCodec("petastorm.codecs.CompressedImageCodec", {"image_codec": ".JPG", "quality": 1000})
    field = StoredField("x", np.uint8, (2, 2, 3), codec, nullable=False)

    assert ps.open(dataset(tmp_path, pa.table({"x": [b"x"]}), field)).schema["x"].codec == ps.codecs.Jpeg()


@dataclass(frozen=True)
class Squash(ps.codecs.CellCodec):
    """A codec for cells that `our_project.codecs.Squash` wrote for Petastorm."""

    name = "our_project.codecs.Squash"
    factor: int
    kinds: tuple[str, ...]

    def encode(self, field: ps.Field, cell: Any) -> bytes:  # noqa: ARG002 - as in the base class
        """Return bytes."""
        return bytes((cell * self.factor).astype(np.float32))

    def decode(self, field: ps.Field, cell: memoryview) -> Any:  # noqa: ARG002 - as in the base class
        """Return an array."""
        return np.frombuffer(cell, np.float32) / np.float32(self.factor)


@pytest.mark.parametrize("protocol", petastorm_pickles.OWN_CODEC)
def test_an_unknown_codec_is_reported_and_can_be_given(tmp_path: Path, protocol: int) -> None:
    """An unknown codec raises DataError with its name and the remedy codecs=; other columns are read without it."""
    table = pa.table({"id": pa.array([7], pa.int32()), "x": [np.array([3, 6], np.float32).tobytes()]})
    put(tmp_path / "part-0.parquet", table)
    describe(tmp_path, table.schema, {UNISCHEMA: base64.b64decode(petastorm_pickles.OWN_CODEC[protocol])})

    assert ps.open(tmp_path).select("id")[0]["id"] == 7
    with pytest.raises(DataError) as caught:
        ps.open(tmp_path)[0]
    assert "Column 'x' was written with the unknown codec 'our_project.codecs.Squash'" in str(caught.value)
    assert "codecs=[MyCodec]" in str(caught.value)
    given = ps.open(tmp_path, codecs=[Squash])
    assert given[0]["x"].tolist() == [1, 2]
    assert given.schema["x"].codec == Squash(3, ["numpy.float32", "x"])  # type: ignore[arg-type] # JSON turns tuples into lists


def test_a_hostile_schema_is_refused_with_its_path_and_a_remedy(tmp_path: Path) -> None:
    """A hostile pickled schema raises DataError without running; the dataset opens as plain Parquet or with a given schema."""
    table = pa.table({"x": [npy([1, 2])]})
    put(tmp_path / "part-0.parquet", table)
    describe(tmp_path, table.schema, {UNISCHEMA: EVIL})

    with pytest.raises(DataError) as caught:
        ps.open(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/_common_metadata: the schema that Petastorm stored there cannot be read: at byte 0 it names "
        "builtins.eval, which no dataset of Petastorm consists of; expected one that Petastorm wrote, and nothing of it is "
        "ever run. Check where the dataset comes from, or open its files as they lie with "
        "format=penstock.formats.parquet.ParquetFormat(), or give it another schema with penstock.adopt(url, schema)."
    )
    assert ps.open(tmp_path, format=ParquetFormat())[0]["x"] == npy([1, 2])
    ps.adopt(tmp_path, ps.Schema("Given", [ps.Field("x", np.int64, (2,), ps.codecs.Npy())]))
    assert ps.open(tmp_path)[0]["x"].tolist() == [1, 2]


def test_an_adopted_schema_replaces_the_columns_it_names(tmp_path: Path) -> None:
    """An adopted schema replaces the columns it names, and leaves the others as Petastorm stored them."""
    table = pa.table({"x": [npy([1.5])], "y": [npy([1, 2])]})
    dataset(tmp_path, table, array("x", np.float64, (None,)), array("y", np.int64, (None,)))

    ps.adopt(tmp_path, ps.Schema("Given", [ps.Field("y", np.int64, (2,), ps.codecs.Npy())]))
    ds = ps.open(tmp_path)
    assert (ds.schema["x"].shape, ds.schema["y"].shape) == ((None,), (2,))
    assert (ds[0]["x"].tolist(), ds[0]["y"].tolist()) == ([1.5], [1, 2])


def test_only_directories_with_a_pickled_schema_are_recognised(tmp_path: Path) -> None:
    """Only a directory whose _common_metadata has a pickled schema is recognised as a Petastorm dataset."""
    plain = tmp_path / "plain"
    put(plain / "part-0.parquet", pa.table({"x": [1]}))
    foreign = tmp_path / "foreign"
    table = pa.table({"x": [1]})
    put(foreign / "part-0.parquet", table)
    describe(foreign, table.schema, {b"pandas": b"{}"})
    broken = tmp_path / "broken"
    put(broken / "part-0.parquet", table)
    (broken / "_common_metadata").write_bytes(b"nothing")
    theirs = dataset(tmp_path / "theirs", table, scalar("x", np.int8))

    names = {place.name: recognised(locate(place)).name for place in (plain, foreign, broken, theirs)}
    assert names == {"plain": "parquet", "foreign": "parquet", "broken": "parquet", "theirs": "petastorm"}
    assert recognised(locate([theirs])).name == "parquet"
    assert ps.open(theirs)[0]["x"].dtype == np.int8
    assert ps.open(theirs / "part-0.parquet")[0]["x"].dtype == np.int64
    assert PetastormFormat().snapshot(locate(plain), None).fields == {}
    assert PetastormFormat().facts(locate(plain)).schema is None


def test_datasets_of_petastorm_have_no_versions(tmp_path: Path) -> None:
    """Opening a Petastorm dataset with a version raises ArgumentError."""
    place = dataset(tmp_path, pa.table({"x": [1]}), scalar("x", np.int64))

    with pytest.raises(ArgumentError, match="datasets of Petastorm have no versions"):
        ps.open(place, version=3)


def test_columns_come_in_the_order_of_the_schema_and_others_after_them(tmp_path: Path) -> None:
    """Columns have the schema's order, with partitions and columns without a file; unnamed columns come last."""
    for number in (1, 2):
        put(tmp_path / f"day={number}" / "part-0.parquet", pa.table({"more": ["m"], "b": [number], "a": [number * 10]}))
    fields = (scalar("a", np.int64), scalar("day", np.str_, "StringType"), scalar("b", np.int16), scalar("c", np.str_))
    new = array("d", np.int8, (None,))
    schema = pa.schema({"more": pa.string(), "b": pa.int64(), "a": pa.int64()})
    describe(tmp_path, schema, {UNISCHEMA: pickle_unischema(StoredSchema("S", (*fields, new)))})
    ds = ps.open(tmp_path)

    assert ds.schema.names == ("a", "day", "b", "c", "d", "more")
    rows = [(int(row["a"]), row["day"], int(row["b"]), row["c"], row["d"], row["more"]) for row in ds]
    assert rows == [(10, "1", 1, None, None, "m"), (20, "2", 2, None, None, "m")]
    assert ds.where(ps.col("day") == "2", ps.col("b") > 1).num_rows == 1


def test_stored_types_are_filtered_in_the_types_of_the_schema(tmp_path: Path) -> None:
    """Filters compare in the types of the schema, and statistics of the stored types prune row groups."""
    table = pa.table({"small": pa.array([0, 100, 200, 255], pa.int16())})
    put(tmp_path / "part-0.parquet", table, row_group_size=2)
    describe(tmp_path, table.schema, {UNISCHEMA: pickle_unischema(StoredSchema("S", (scalar("small", np.uint8),)))})
    ds = ps.open(tmp_path).where(ps.col("small") >= 200)

    assert [int(row["small"]) for row in ds] == [200, 255]
    assert "row groups  1 of 2" in ds.explain()


def test_a_value_that_does_not_fit_its_dtype_is_refused(tmp_path: Path) -> None:
    """A stored value that does not fit the schema's dtype raises DataError with its place; Petastorm wraps it around."""
    place = dataset(tmp_path, pa.table({"small": pa.array([1, 300], pa.int16())}), scalar("small", np.uint8))

    with pytest.raises(DataError, match=r"part-0\.parquet.*'small'.*300"):
        list(ps.open(place))


@pytest.mark.parametrize(
    ("field", "cell", "kind", "expected"),
    [
        (scalar("x", np.str_, "StringType"), b"abc", pa.binary(), "abc"),
        (scalar("x", np.bytes_, "StringType"), "abc", pa.string(), b"abc"),
        (scalar("x", np.str_, "StringType"), "abc", pa.large_string(), "abc"),
        (scalar("x", np.float32, "DoubleType"), 0.1, pa.float64(), np.float32(0.1)),
        (scalar("x", np.int64, "IntegerType"), 5, pa.int32(), 5),
        (scalar("x", bool, "BooleanType"), True, pa.bool_(), True),
        (scalar("x", float, "FloatType"), 0.5, pa.float32(), 0.5),
        (scalar("x", np.datetime64, "TimestampType"), 5, pa.timestamp("ns"), np.datetime64(5, "ns")),
        (scalar("x", np.datetime64, "LongType"), 5, pa.int64(), 5),
        (scalar("x", Decimal, "StringType"), "1.50", pa.string(), "1.50"),
        (scalar("x", np.object_, "StringType"), "o", pa.string(), "o"),
        (scalar("x", np.timedelta64), 5, pa.int64(), 5),
        (StoredField("x", np.float32, (4,), None, nullable=False), [1, 2, 3, 4], pa.list_(pa.float32()), [1, 2, 3, 4]),
        (StoredField("x", np.float32, (2, 2), None, nullable=False), [1, 2, 3, 4], pa.list_(pa.float32()), [[1, 2], [3, 4]]),
        (StoredField("x", np.float32, (None,), None, nullable=False), [1, 2], pa.list_(pa.float32()), [1, 2]),
        (StoredField("x", np.float32, (2,), None, nullable=False), [1, 2], pa.list_(pa.float64()), [1, 2]),
        (array("x", np.int64, (0, 2)), npy([[1, 2]]), pa.binary(), [[1, 2]]),
        (array("x", np.int64, ()), npy(5), pa.binary(), 5),
        (array("x", np.timedelta64, (1,), "CompressedNdarrayCodec"), npz(np.array([1], "m8[h]")), pa.binary(), ["1h"]),
    ],
    ids=str,
)
def test_values_are_converted_to_the_schema(
    tmp_path: Path, field: StoredField, cell: object, kind: pa.DataType, expected: object
) -> None:
    """Stored values are converted to the field's dtype and shape, or stay as stored if the schema does not say how."""
    place = dataset(tmp_path, pa.table({"x": pa.array([cell], kind)}), field)

    found = ps.open(place)[0]["x"]
    if expected == ["1h"]:
        assert found.tolist() == [dt.timedelta(hours=1)]
    else:
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == expected


def test_decimals_in_directories_have_the_digits_of_the_schema(tmp_path: Path) -> None:
    """A decimal in a directory name gets the scale of the schema."""
    put(tmp_path / "price=1.5" / "part-0.parquet", pa.table({"x": [1]}))
    price = scalar("price", Decimal, "DecimalType", precision=10, scale=2, hasPrecisionInfo=True)
    day = scalar("day", np.datetime64, "DateType")
    describe(tmp_path, pa.schema({"x": pa.int64()}), {UNISCHEMA: pickle_unischema(StoredSchema("S", (price, day)))})

    row = ps.open(tmp_path)[0]
    assert str(row["price"]) == "1.50"
    assert np.isnat(row["day"])


def test_arrays_of_times_of_another_kind_are_refused(tmp_path: Path) -> None:
    """An array of integers in a field of times raises DataError."""
    place = dataset(tmp_path, pa.table({"x": [npy([1])]}), array("x", np.datetime64, (None,)))

    with pytest.raises(DataError, match=r"column 'x': it holds int64, and times were expected"):
        ps.open(place)[0]


def test_facts_have_row_groups_and_indexes(tmp_path: Path) -> None:
    """The facts have the number of row groups of each file, and the indexed row groups of each value."""
    table = pa.table({"x": [1, 2, 3]})
    put(tmp_path / "split=a" / "part-0.parquet", table, row_group_size=2)
    put(tmp_path / "split=b" / "part-0.parquet", table)
    counts = {"split=a/part-0.parquet": 2, "split=b/part-0.parquet": 1}
    index = base64.b64decode(petastorm_pickles.INDEXES[2])
    describe(tmp_path, table.schema, {ROW_GROUPS: json.dumps(counts).encode(), INDEX: index})
    place = locate(tmp_path)
    facts = PetastormFormat().facts(place)

    assert (facts.schema, facts.row_groups, facts.rows) == (None, counts, None)
    found = facts.indexes["by_label"]
    assert isinstance(found, ValueIndex)
    assert found.row_groups[2] == {0, 1}
    paths = PetastormFormat().snapshot(place, None).files.path.to_pylist()
    assert facts.counts([*paths, f"{place.path}/new.parquet"], place.path).tolist() == [2, 1, -1]


def test_a_summary_file_has_the_rows_of_row_groups(tmp_path: Path) -> None:
    """A _metadata file gives the rows of each row group, and files that it does not name have no row groups."""
    footers: list[Any] = []
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / name, row_group_size=2, metadata_collector=footers)
        footers[-1].set_file_path(name)
    schema = pa.schema({"x": pa.int64()})
    pq.write_metadata(schema, tmp_path / "_metadata", metadata_collector=footers)
    describe(tmp_path, schema, {UNISCHEMA: pickle_unischema(StoredSchema("S", (scalar("x", np.int64),)))})
    facts = PetastormFormat().facts(locate(tmp_path))

    assert facts.row_groups == {"a.parquet": 2, "b.parquet": 2}
    assert facts.rows == {"a.parquet": [2, 1], "b.parquet": [2, 1]}
    assert facts.counts([f"{tmp_path}/c.parquet"], str(tmp_path)).tolist() == [0]


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        ({UNISCHEMA: b"N."}, "the schema that Petastorm stored there cannot be read: it holds nothing"),
        ({ROW_GROUPS: b"{"}, "the numbers of row groups that Petastorm stored there cannot be read: it is no JSON"),
        ({INDEX: EVIL}, "the index of row groups that Petastorm stored there cannot be read: at byte 0 it names builtins.eval"),
    ],
)
def test_facts_that_cannot_be_read_are_reported_with_their_path(
    tmp_path: Path, metadata: dict[bytes, bytes], wanted: str
) -> None:
    """Facts that cannot be read raise DataError, which names them and their file."""
    describe(put(tmp_path / "a.parquet", pa.table({"x": [1]})).parent, pa.schema({"x": pa.int64()}), metadata)

    with pytest.raises(DataError) as caught:
        PetastormFormat().facts(locate(tmp_path))
    assert f"{tmp_path}/_common_metadata: {wanted}" in str(caught.value)


def test_an_invalid_summary_file_raises(tmp_path: Path) -> None:
    """A _metadata file that names no files of row groups raises DataError."""
    put(tmp_path / "a.parquet", pa.table({"x": [1]}))
    put(tmp_path / "_metadata", pa.table({"x": [1]}))

    with pytest.raises(DataError, match="_metadata: it does not say in which file a row group lies"):
        PetastormFormat().facts(locate(tmp_path))


def differences(row: Mapping[str, Any], expected: Mapping[str, Any], jpegs: set[str]) -> list[str]:
    """Return the fields of a row that differ from what Petastorm read."""
    return [name for name, wanted in expected.items() if not agrees(row, name, wanted, exact=name not in jpegs)]


def agrees(row: Mapping[str, Any], name: str, wanted: Mapping[str, Any] | None, *, exact: bool) -> bool:
    """Return whether a cell equals the reference; Petastorm turns a null among floats into NaN."""
    if not row[f"{name}_valid"]:
        return bool(wanted is None or (isinstance(wanted.get("value"), float) and np.isnan(wanted["value"])))
    return wanted is not None and same(row[name], wanted, exact=exact)


def same(found: Any, wanted: Mapping[str, Any], *, exact: bool) -> bool:
    """Return whether a value equals the reference. Without `exact`, pixels may differ, because JPEG decoders differ."""
    if "py" in wanted:
        value = wanted["value"]
        if wanted["py"] == "Decimal":
            return bool(str(found) == value)
        if wanted["py"] == "datetime64":
            return bool(found == np.datetime64(value))
        return bool(found == value) and (wanted["py"] == "str_" or found.dtype == np.dtype(getattr(np, wanted["py"])))
    if (found.dtype.str, list(found.shape)) != (wanted["dtype"], wanted["shape"]):
        return False
    if "values" in wanted:
        texts = [text.decode("latin-1") if isinstance(text, bytes) else text for text in found.reshape(-1).tolist()]
        return bool(texts == wanted["values"])
    return not exact or hashlib.sha256(np.ascontiguousarray(found).tobytes()).hexdigest() == wanted["sha256"]


@pytest.fixture(params=DATASETS)
def real(request: pytest.FixtureRequest, corpus: Corpus) -> tuple[Path, dict[str, Any]]:
    """Return a dataset that Petastorm wrote, and the reference of what Petastorm read from it."""
    reference = json.loads(corpus(f"petastorm/reference/{request.param}.json").read_text())
    return corpus(f"petastorm/{request.param}"), reference


def test_real_datasets_decode_to_what_petastorm_reads(real: tuple[Path, dict[str, Any]]) -> None:
    """Every field of every row equals what Petastorm reads, for versions since 2019."""
    pytest.importorskip("cv2")
    place, reference = real
    ds = ps.open(place)
    key = next(name for name in ("id", "image_id", "ts") if name in reference["fields"])
    jpegs = {name for name, wanted in reference["fields"].items() if "jpeg" in str(wanted["codec"])}
    wrong = {}
    for row in ds.nulls(ps.Mask(), ".*"):
        if found := differences(row, reference["rows"][str(row[key])], jpegs):
            wrong[str(row[key])] = found

    assert wrong == {}
    assert ds.num_rows == reference["num_rows"]
    assert set(ds.schema.names) == set(reference["fields"])


def test_real_photos_have_their_colours_in_order(corpus: Corpus) -> None:
    """A decoded JPEG has nearly the same pixels as with Pillow, in the order red, green, blue."""
    pytest.importorskip("cv2")
    image = pytest.importorskip("PIL.Image")
    place = corpus("petastorm/modern-0.13.1-images")
    stored = {row["image_id"]: row["jpeg"] for row in ps.open(place, format=ParquetFormat()).select("image_id", "jpeg")}

    for row in ps.open(place).select("image_id", "jpeg"):
        expected = np.asarray(image.open(io.BytesIO(stored[row["image_id"]])).convert("RGB")).astype(int)
        assert int(np.abs(row["jpeg"] - expected).max()) <= 8


def test_real_schemas_are_read_completely(real: tuple[Path, dict[str, Any]]) -> None:
    """Names, dtypes, shapes and codecs are those that Petastorm finds in the pickle."""
    place, reference = real
    schema = PetastormFormat().facts(locate(place)).schema

    assert schema is not None
    assert schema.name == reference["schema_name"]
    for field in schema.fields:
        wanted = reference["fields"][field.name]
        assert (list(field.shape), field.nullable) == (wanted["shape"], wanted["nullable"])
        assert {"bool": "bool_"}.get(field.numpy_dtype.__name__, field.numpy_dtype.__name__) == wanted["dtype"]
        assert (field.codec is None) == (wanted["codec"] is None)
        if field.codec is not None:
            assert wanted["codec"].startswith(field.codec.name.removeprefix("petastorm.codecs."))
            assert field.codec.spark_type is None or field.codec.spark_type.name in wanted["codec"]


def test_real_row_groups_and_indexes_agree_with_the_data(real: tuple[Path, dict[str, Any]]) -> None:
    """Stored row group counts are those of the files, and each index lists exactly the row groups that hold a value."""
    place, reference = real
    facts = PetastormFormat().facts(locate(place))
    files = sorted(path for path in place.rglob("*.parquet") if not path.name.startswith("."))

    counts = [pq.read_metadata(path).num_row_groups for path in files]
    assert facts.counts([str(path) for path in files], str(place)).tolist() == counts
    starts = dict(zip(map(str, files), np.cumsum([0, *counts]).tolist(), strict=False))
    for index in facts.indexes.values():
        seen = row_groups_by_value(place, index.column, starts)
        assert index.row_groups == (seen if isinstance(index, ValueIndex) else frozenset().union(*seen.values()))
    assert set(facts.indexes) == expected_indexes(facts, reference)


def expected_indexes(facts: PetastormFacts, reference: Mapping[str, Any]) -> set[str]:
    """Return the names of the indexes that a dataset with such a schema has."""
    schema = facts.schema
    assert schema is not None
    legacy = {"sensor_name", "id", "string_array_nullable"}
    if schema.name == "TestSchema":
        return legacy | ({"partition_key"} if "matrix_uint32" in reference["fields"] else set())
    return {"ImgSchema": {"by_label", "has_weight"}, "RowGroups500": {"by_label"}}.get(schema.name, set())


def row_groups_by_value(place: Path, column: str, starts: Mapping[str, int]) -> dict[Any, frozenset[int]]:
    """Return the row groups that hold each value of a column, read from the data."""
    found: dict[Any, set[int]] = {}
    for row in ps.open(place).select(column).nulls(ps.Mask(), column).with_row_ids():
        if not row[f"{column}_valid"]:
            continue
        values = row[column].reshape(-1).tolist() if isinstance(row[column], np.ndarray) else [row[column]]
        for value in values:
            found.setdefault(value, set()).add(starts[row["_file"]] + int(row["_row_group"]))
    return {value: frozenset(numbers) for value, numbers in found.items()}


def test_opening_plain_parquet_does_not_import_the_pickle_reader(tmp_path: Path) -> None:
    """Opening plain Parquet imports only the modules that recognise Petastorm datasets."""
    put(tmp_path / "a.parquet", pa.table({"id": [1, 2]}))
    script = (
        "import sys, penstock\n"
        f"assert penstock.open({str(tmp_path)!r}).num_rows == 2\n"
        "print(*sorted(name for name in sys.modules if name.startswith('penstock.formats.petastorm')))"
    )

    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout.split() == ["penstock.formats.petastorm", "penstock.formats.petastorm.keys"]


def test_names_of_the_package_are_imported_on_use() -> None:
    """Every exported name can be accessed, and another name raises AttributeError."""
    import penstock.formats.petastorm as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(package, "nothing")  # noqa: B009 - the attribute does not exist
