"""Writing Petastorm datasets: metadata of both libraries, and errors for fields without a counterpart."""

from __future__ import annotations

import datetime as dt
import json
import keyword
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._engine.storage.filesystem import locate
from penstock._open import recognised
from penstock.codecs import Avif, Jpeg, Npy, Npz, Png, Raw, Scalar, Tensor, Webp
from penstock.errors import ArgumentError
from penstock.formats.parquet import ParquetFormat
from penstock.formats.petastorm import PetastormFormat, StoredField, StoredSchema, metadata_of
from penstock.formats.petastorm.fields import field_of, schema_of, suited
from penstock.formats.petastorm.schema import load_unischema

UNISCHEMA = b"dataset-toolkit.unischema.v1"
ROW_GROUPS = b"dataset-toolkit.num_row_groups_per_file.v1"
SCALARS: list[Any] = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"),
    *(str, bytes, dt.date, dt.datetime, Decimal, "datetime64[ms]"),
]
NAMES = st.from_regex(r"[a-zA-Z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: not keyword.iskeyword(name))
SHAPES = st.lists(st.none() | st.integers(1, 99), min_size=1, max_size=3).map(tuple)


@st.composite
def fields(draw: st.DrawFn, name: str) -> ps.Field:
    """Draw a field that Petastorm has a counterpart for."""
    nullable = draw(st.booleans())
    match draw(st.sampled_from(["scalar", "decimal", "array", "image"])):
        case "scalar":
            return ps.Field(name, draw(st.sampled_from(SCALARS)), nullable=nullable)
        case "decimal":
            precision = draw(st.integers(1, 38))
            kind = pa.decimal128(precision, draw(st.integers(0, precision)))
            return ps.Field(name, Decimal, (), Scalar(kind), nullable=nullable)
        case "array":
            dtype = draw(st.sampled_from(["bool", "int8", "uint64", "float16", "complex128", "U", "S", "datetime64[ns]"]))
            return ps.Field(name, dtype, draw(SHAPES), draw(st.sampled_from([None, Npy(), Npz()])), nullable=nullable)
    codec = draw(st.sampled_from([Png(), Png(9), Jpeg(), Jpeg(33)]))
    size = draw(st.tuples(st.none() | st.integers(1, 99), st.none() | st.integers(1, 99)))
    return ps.Field(name, np.uint8, (*size, *draw(st.sampled_from([(), (3,)]))), codec, nullable=nullable)


@st.composite
def schemas(draw: st.DrawFn) -> ps.Schema:
    """Draw a schema that Petastorm has a counterpart for."""
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    return ps.Schema(draw(st.sampled_from(["", "Hello", "S1"])), [draw(fields(name)) for name in names])


@given(schema=schemas())
def test_a_schema_survives_the_pickle_of_petastorm(schema: ps.Schema) -> None:
    """Names, dtypes, shapes, nulls and codecs survive the pickled Unischema, given the column types of the files."""
    full = suited(schema)
    found = load_unischema(metadata_of(schema, {})[UNISCHEMA])

    assert found == schema_of(schema)
    assert found.name == schema.name
    for stored, field in zip(found.fields, full, strict=True):
        assert field.codec is not None
        back = field_of(stored, field.codec.storage(field))
        assert back is not None
        timeless = field.dtype.kind == "M" and field.shape != ()
        assert (back.name, back.shape, back.nullable) == (field.name, field.shape, field.nullable)
        assert timeless or (back.dtype, type(back.codec)) == (field.dtype, type(field.codec))
        assert not isinstance(field.codec, Jpeg) or back.codec == field.codec


def test_a_petastorm_dataset_stores_its_schema_and_row_groups(tmp_path: Path) -> None:
    """A written dataset has our schema, the pickled Unischema and the number of row groups of each file."""
    schema = ps.Schema("Hello", [ps.Field("id", np.int32), ps.Field("x", np.float32, (2,)), ps.Field("day", str)])
    rows: list[dict[str, Any]] = [
        {"id": n, "x": np.full(2, n, np.float32), "day": "mon" if n < 7 else "tue"} for n in range(10)
    ]
    written = ps.write(tmp_path / "t", schema, rows, partition_by="day", row_group_rows=3, format=PetastormFormat())

    metadata = pq.read_schema(tmp_path / "t" / "_common_metadata").metadata
    counts = json.loads(metadata[ROW_GROUPS])
    assert counts == {name: pq.read_metadata(tmp_path / "t" / name).num_row_groups for name in written.files}
    assert sorted(counts.values()) == [1, 3]
    assert b"penstock.schema" in metadata
    assert load_unischema(metadata[UNISCHEMA]) == schema_of(schema)
    assert recognised(locate(tmp_path / "t")).name == "petastorm"
    assert PetastormFormat().facts(locate(tmp_path / "t")).row_groups == counts
    ds = ps.open(tmp_path / "t")
    assert ds.schema.names == ("id", "x", "day")
    assert [(int(row["id"]), row["x"].tolist(), row["day"]) for row in ds] == [
        (r["id"], r["x"].tolist(), r["day"]) for r in rows
    ]


def test_a_written_dataset_is_read_by_its_pickle_alone(tmp_path: Path) -> None:
    """A written dataset has the same values if only the metadata of Petastorm is left, without our schema."""
    pytest.importorskip("cv2")
    rows = sample_rows()
    ps.write(tmp_path, SAMPLE, rows, format=PetastormFormat(), mode="overwrite")
    stored = pq.read_schema(tmp_path / "_common_metadata")
    kept = {key: value for key, value in stored.metadata.items() if key.startswith(b"dataset-toolkit.")}
    pq.write_metadata(stored.with_metadata(kept), tmp_path / "_common_metadata")

    for found, expected in zip(ps.open(tmp_path).nulls(ps.Fill(-1), "whole"), rows, strict=True):
        assert differences(found, {**expected, "whole": -1 if expected["whole"] is None else expected["whole"]}) == []


def test_an_inferred_schema_has_codecs_of_petastorm(tmp_path: Path) -> None:
    """Arrays of an inferred schema get the codec Npy, where plain Parquet uses Arrow's tensors."""
    data = {"id": np.arange(4), "x": np.ones((4, 2), np.float32)}
    ps.write(tmp_path / "batch", data=data, format=PetastormFormat())
    ps.write(tmp_path / "rows", data=[{"id": 1, "x": np.ones(2, np.float32)}], format=PetastormFormat())
    ps.write(tmp_path / "arrow", data=pa.table({"id": [1, 2], "name": ["a", None]}), format=PetastormFormat())

    assert ps.open(tmp_path / "batch").schema["x"].codec == Npy()
    assert ps.open(tmp_path / "rows").schema["x"].codec == Npy()
    found = PetastormFormat().facts(locate(tmp_path / "arrow")).schema
    assert found == StoredSchema(
        "",
        (
            StoredField("id", np.int64, (), scalar("LongType"), nullable=True),
            StoredField("name", np.str_, (), scalar("StringType"), nullable=True),
        ),
    )


def scalar(kind: str) -> Any:
    """Return the codec of a single value of a Spark type."""
    return schema_of(ps.Schema("", [ps.Field("x", {"LongType": np.int64, "StringType": str}[kind])])).fields[0].codec


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (ps.Field("x", np.float16), "Field 'x' is stored as halffloat, for which Petastorm has no counterpart"),
        (ps.Field("x", dt.timedelta), "Field 'x' is stored as duration[us]"),
        (ps.Field("x", "datetime64[ns]"), "Field 'x' is stored as timestamp[ns]"),
        (ps.Field("x", dt.datetime, (), Scalar("timestamp[us, tz=UTC]")), "stored as timestamp[us, tz=UTC]"),
        (ps.Field("x", Decimal, (), Scalar("decimal256(50, 2)")), "stored as decimal256(50, 2)"),
        (ps.Field("x", "timedelta64[s]", (), Scalar("time32[s]")), "stored as time32[ms]"),
        (
            ps.Field("x", np.float32, (2,), Tensor()),
            "Field 'x' is stored by Tensor(), for which Petastorm has no counterpart. Use",
        ),
        (ps.Field("x", np.float32, (2,), Raw()), "stored by Raw()"),
        (ps.Field("x", np.uint8, (2, 2, 3), Avif()), "stored by Avif(quality=80)"),
        (ps.Field("x", np.uint8, (2, 2, 4), Png()), "an image of the shape (2, 2, 4)"),
        (ps.Field("x", np.uint8, (2, 2, None), Png()), "an image of the shape (2, 2, None)"),
        (ps.Field("x", np.uint8, (2, 2), Webp()), "It reads (height, width, 3) so"),
        (ps.Field("a-b", np.int8), "Field 'a-b' cannot be one of Petastorm, which makes a named tuple of rows"),
        (ps.Field("class", np.int8), "Field 'class' cannot be one of Petastorm"),
        (ps.Field("_x", np.int8), "Field '_x' cannot be one of Petastorm"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fields_without_a_counterpart_in_petastorm_are_refused(tmp_path: Path, field: ps.Field, message: str) -> None:
    """A field without a counterpart in Petastorm raises ArgumentError before a row is accepted, and no files are left."""
    with pytest.raises(ArgumentError) as caught:
        ps.write(tmp_path / "t", ps.Schema("S", [field]), format=PetastormFormat())

    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_other_tables_that_petastorm_does_not_support_are_refused(tmp_path: Path) -> None:
    """Invalid schema names, Arrow lists, boolean partitions and invalid formats raise ArgumentError."""
    schema = ps.Schema("S", [ps.Field("id", np.int8), ps.Field("flag", np.bool_)])

    with pytest.raises(ArgumentError, match="Schema 'My data' cannot be one of Petastorm, which names a class after it"):
        ps.write(tmp_path / "t", ps.Schema("My data", list(schema)), format=PetastormFormat())
    with pytest.raises(
        ArgumentError, match=r"Field 'x' is stored as list<.*int64>; expected a codec, which all fields of petastorm have"
    ):
        ps.write(tmp_path / "t", data=pa.table({"x": [[1]]}), format=PetastormFormat())
    with pytest.raises(ArgumentError, match="partition_by='flag', which is a boolean"):
        ps.write(tmp_path / "t", schema, partition_by="flag", format=PetastormFormat())
    for wrong in ("petasturm", PetastormFormat, ParquetFormat()):
        with pytest.raises(ArgumentError, match="expected a format that can be written: "):
            ps.write(tmp_path / "t", schema, format=wrong)  # type: ignore[arg-type] # invalid on purpose
    assert list(tmp_path.iterdir()) == []


def test_a_petastorm_dataset_is_not_appended_to(tmp_path: Path) -> None:
    """An append to a Petastorm dataset raises, because its metadata counts the row groups of all files."""
    schema = ps.Schema("S", [ps.Field("id", np.int8)])
    ps.write(tmp_path / "theirs", schema, [{"id": 1}], format=PetastormFormat(), mode="append")
    ps.write(tmp_path / "ours", schema, [{"id": 1}])

    with pytest.raises(ArgumentError, match="is a Petastorm table, whose metadata counts the row groups"):
        ps.write(tmp_path / "theirs", schema, [{"id": 2}], mode="append")
    with pytest.raises(ArgumentError, match="expected a new table, because the format's metadata would lack"):
        ps.write(tmp_path / "ours", schema, [{"id": 2}], mode="append", format=PetastormFormat())
    ps.write(tmp_path / "theirs", schema, [{"id": 3}], mode="overwrite")
    assert recognised(locate(tmp_path / "theirs")).name == "parquet"


SAMPLE = ps.Schema(
    "Sample",
    [
        *(ps.Field(f"{kind}_", kind) for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")),
        ps.Field("float32_", np.float32),
        ps.Field("float64_", np.float64, nullable=True),
        ps.Field("flag", np.bool_),
        ps.Field("text", str, nullable=True),
        ps.Field("blob", bytes),
        ps.Field("whole", np.int64, nullable=True),
        ps.Field("day", dt.date),
        ps.Field("at", dt.datetime),
        ps.Field("price", Decimal, (), Scalar("decimal128(10, 2)")),
        ps.Field("fields", np.int8),
        ps.Field("array", np.float32, (2, 3)),
        ps.Field("ragged", np.int16, (None,), nullable=True),
        ps.Field("packed", np.complex64, (2,), Npz()),
        ps.Field("words", str, (None,)),
        ps.Field("moments", "datetime64[us]", (2,)),
        ps.Field("image", np.uint8, (5, 4, 3), Png()),
        ps.Field("scan", np.uint16, (None, None), Png(9)),
        ps.Field("photo", np.uint8, (16, 16, 3), Jpeg(95)),
        ps.Field("web", np.uint8, (16, 16, 3), Webp(lossless=True)),
        ps.Field("split", str),
    ],
)
LOSSY = {"photo": 12}
"""Fields with lossy codecs, and the largest difference of their values."""


def sample_rows() -> list[dict[str, Any]]:
    """Return rows with every codec of Petastorm, and with values at the ends of their ranges."""
    random = np.random.default_rng(0)
    return [
        {
            **{f"{kind}_": np.iinfo(kind).max - n for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32")},
            "int64_": 2**62 + n,
            "uint64_": 2**64 - 1 - n,
            "float32_": np.float32(n / 3),
            "float64_": None if n % 2 else n / 7,
            "flag": n % 2 == 0,
            "text": None if n % 3 == 0 else f"é{n}",
            "blob": bytes([0, n, 255, 0]),
            "whole": None if n == 1 else 2**60 + n,
            "day": np.datetime64(f"2024-01-{n + 1:02}"),
            "at": np.datetime64("2024-01-01T00:00:00.123456") + np.timedelta64(n, "m"),
            "price": Decimal(f"{n}.25"),
            "fields": n,
            "array": random.random((2, 3), dtype=np.float32),
            "ragged": None if n == 4 else np.arange(n, dtype=np.int16),
            "packed": np.array([n, 1j * n], np.complex64),
            "words": np.array(["a" * n, "ü"]),
            "moments": np.array([n, n + 1], "datetime64[us]"),
            "image": random.integers(0, 255, (5, 4, 3), dtype=np.uint8),
            "scan": random.integers(0, 65535, (3 + n, 2), dtype=np.uint16),
            "photo": np.full((16, 16, 3), (200, 10 * n, 30), np.uint8),
            "web": random.integers(0, 255, (16, 16, 3), dtype=np.uint8),
            "split": ("train", "val")[n % 2],
        }
        for n in range(10)
    ]


def differences(found: Any, expected: dict[str, Any]) -> list[str]:
    """Return the fields of a row that differ from what was written."""
    return [name for name, cell in expected.items() if not same(found[name], cell, LOSSY.get(name, 0))]


def same(found: Any, cell: Any, tolerance: int) -> bool:
    """Return whether two cells are equal within a tolerance."""
    if cell is None:
        return found is None or (isinstance(found, float) and found != found)  # noqa: PLR0124 - NaN stands for null among floats
    if not isinstance(cell, np.ndarray):
        return bool(found == cell)
    if found.dtype.kind != cell.dtype.kind or found.shape != cell.shape:
        return False
    return int(np.abs(found.astype(int) - cell).max()) <= tolerance if tolerance else bool(np.array_equal(found, cell))


READER = """
import numpy as np
from petastorm.etl.dataset_metadata import get_schema_from_dataset_url

def plain(value):
    return bytes(value) if isinstance(value, bytes) else value  # NumPy's own lose zeros at their end on the way

url = "file://" + sys.argv[1]
schema = get_schema_from_dataset_url(url)
assert schema.image.shape == (5, 4, 3) and schema.fields["fields"].numpy_dtype is np.int8
assert len(schema.as_spark_schema().fields) == len(schema.fields)
rows = [{name: plain(value) for name, value in row._asdict().items()} for row in every(url)]
np.savez(sys.argv[1] + ".npz", rows=np.array(rows, dtype=object))
"""


@pytest.mark.peer
@pytest.mark.slow
def test_petastorm_itself_reads_what_we_write(tmp_path: Path, ask_petastorm: Callable[..., list[str]]) -> None:
    """Petastorm 0.13.1 with Spark's types, in an environment of its own, reads every value that was written."""
    pytest.importorskip("cv2")
    rows = {row["int64_"]: row for row in sample_rows()}
    ps.write(tmp_path / "t", SAMPLE, rows.values(), partition_by="split", row_group_rows=2, format=PetastormFormat())

    ask_petastorm(READER, tmp_path / "t")
    found = np.load(tmp_path / "t.npz", allow_pickle=True)["rows"].tolist()
    wrong = {int(row["int64_"]): differences(row, rows[int(row["int64_"])]) for row in found}
    assert wrong == {key: [] for key in rows}
