"""Messages about invalid data for the writer, or an invalid stored schema, name the cause and not a symptom."""

from __future__ import annotations

import builtins
import datetime as dt
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.codecs import Jpeg, Npy, Png
from penstock.errors import ArgumentError, DataError, MissingExtraError
from penstock.schema import Field, Schema
from penstock.schema.json import KEY, dump, load


def write_error(folder: Path, field: Field, data: Any) -> str:
    """Return the message of the error that writing data of one field raises."""
    with pytest.raises(DataError) as caught:
        ps.write(folder / "t", Schema("S", [field]), data)
    return str(caught.value)


@pytest.mark.parametrize(
    ("field", "cells", "body"),
    [
        (
            Field("x", np.int8),
            np.arange(3),
            "The batch that begins with row 0, field 'x': got an array of int64; expected one of int8. Convert it: "
            "column.astype('int8'), if they are whole numbers in its range; or change the field's dtype.",
        ),
        (
            Field("x", np.float32),
            np.array([0.5, 0.1]),
            "The batch that begins with row 0, field 'x': got an array of float64; expected one of float32. Convert it: "
            "column.astype('float32'), which rounds; or change the field's dtype.",
        ),
        (
            Field("x", np.uint8, (2,)),
            np.zeros((3, 2)),
            "The batch that begins with row 0, field 'x': got an array of float64; expected one of uint8. Convert it: "
            "column.astype('uint8'), if they are whole numbers in its range; or change the field's dtype.",
        ),
    ],
)
def test_an_array_of_another_dtype_is_reported_by_its_dtype(tmp_path: Path, field: Field, cells: Any, body: str) -> None:
    """The message names the dtypes and the batch instead of one row, because all rows have the wrong type."""
    assert write_error(tmp_path, field, {"x": cells}) == body


@pytest.mark.parametrize("data", [pa.table({"x": [0.5, 0.1]}), pd.DataFrame({"x": [0.5, 0.1]})], ids=["arrow", "pandas"])
def test_a_number_that_would_be_rounded_is_reported_with_its_rounded_value(tmp_path: Path, data: Any) -> None:
    """The message names the row, both values, and the types as NumPy names them."""
    assert write_error(tmp_path, Field("x", np.float32), data) == (
        "Row 1, field 'x': got 0.1 of float64, which would be rounded to 0.10000000149011612; expected values that float32 "
        "holds as they are. Round the column yourself, with .astype('float32') or .cast(); or change the field's dtype."
    )


def test_missing_values_of_pandas_are_reported_as_pandas_shows_them(tmp_path: Path) -> None:
    """A missing value of pandas is reported as nan or <NA>; in a float column nan is an ordinary value."""
    body = "got nan, which pandas has where a value is missing; expected"
    fill = "Fill it: frame['x'].fillna(value); or allow nulls, Field('x', ..., nullable=True), and give None for it."

    assert write_error(tmp_path, Field("x", np.int64), pd.DataFrame({"x": [1.0, np.nan]})) == (
        f"Row 1, field 'x': {body} a value of int64. {fill}"
    )
    assert f"Row 1, field 'x': {body} a str. {fill}" == write_error(
        tmp_path, Field("x", str), pd.DataFrame({"x": ["a", np.nan]})
    )
    assert "Row 0, field 'x': got <NA>, which" in write_error(
        tmp_path, Field("x", np.int64), pd.DataFrame({"x": pd.array([None, 1], "Int64")})
    )
    ps.write(tmp_path / "t", Schema("S", [Field("x", np.float64)]), pd.DataFrame({"x": [1.0, np.nan]}))
    assert str(ps.open(tmp_path / "t").head()["x"].tolist()) == "[1.0, nan]"


def test_an_unknown_column_is_not_reported_as_a_null(tmp_path: Path) -> None:
    """The advice for an unknown column is to leave it out; for a missing one, to give it or make it nullable."""
    assert write_error(tmp_path, Field("x", np.int8), {"x": np.zeros(3, np.int8), "y": [1, 2, 3]}) == (
        "Row 0: 'y' is not in the schema. Fields: x. Leave it out, or write the table again with a schema that has it."
    )
    assert write_error(tmp_path, Field("x", np.int8), [{}, {}]).endswith(
        "'x' is missing. Fields: x. Give every field, or write the table again with a schema in which it is nullable."
    )


@pytest.mark.parametrize("codec", [Png(), Jpeg()])
def test_a_missing_library_is_not_reported_as_invalid_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Any) -> None:
    """Without an image library, writing and reading raise MissingExtraError with the extra to install."""
    schema = Schema("S", [Field("x", np.uint8, (8, 8, 3), codec)])
    rows = [{"x": np.zeros((8, 8, 3), np.uint8)}]
    ps.write(tmp_path / "there", schema, rows)
    original_import = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name in {"cv2", "imagecodecs", "simplejpeg"}:
            raise ImportError(name)
        return original_import(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"Install them: pip install 'penstock\[image\]'"):
        ps.write(tmp_path / "t", schema, rows)
    with pytest.raises(MissingExtraError, match=r"Install them: pip install 'penstock\[image\]'"):
        list(ps.open(tmp_path / "there").batch(1))
    assert not (tmp_path / "t").exists()


def test_an_unsupported_dtype_raises_when_the_field_is_made(tmp_path: Path) -> None:
    """A class that NumPy would treat as object raises in `Field`; an object that no codec stores raises when it is written."""
    with pytest.raises(ArgumentError) as caught:
        Field("x", dt.time)
    assert str(caught.value) == (
        "Field 'x' got dtype=<class 'datetime.time'>; expected a NumPy dtype, str, bytes, Decimal, date, datetime or "
        "timedelta. For times of day use 'timedelta64[us]' with codec=penstock.codecs.Scalar('time64[us]')."
    )
    with pytest.raises(ArgumentError, match=r"dtype=<class 'dict'>; .* For other objects use dtype=object with a codec"):
        Field("x", dict)
    assert write_error(tmp_path, Field("x", object), [{"x": {"a": 1}}]) == (
        "Row 0, field 'x': got {'a': 1} (dict); expected a decimal.Decimal, as a field of objects without a codec holds. Say "
        "what its cells are: Field('x', ...); or give the field a codec of your own that stores them."
    )


def test_adopting_a_field_that_is_not_nullable_checks_for_nulls(tmp_path: Path) -> None:
    """Nulls in the statistics of a file raise an error with the file, the row group and the number of nulls."""
    for number, cells in enumerate([[1, 2, 3, 4], [1, 2, None, None]]):
        pq.write_table(pa.table({"x": pa.array(cells, pa.int64())}), tmp_path / f"{number}.parquet", row_group_size=2)

    with pytest.raises(ArgumentError) as caught:
        ps.adopt(tmp_path, Schema("S", [Field("x", np.int64)]))

    assert str(caught.value) == (
        f"Column 'x' of {tmp_path}/1.parquet has 2 nulls in row group 1, and the field is not nullable; expected values. "
        "Allow nulls: Field('x', ..., nullable=True)."
    )
    ps.adopt(tmp_path, Schema("S", [Field("x", np.int64, nullable=True)]))
    assert ps.open(tmp_path).num_rows == 8


# -------------------------------------------------------------------------------------------------- the stored schema

STORED = Schema("S", [Field("x", np.int64), Field("image", np.uint8, (4,), Npy())])
PREFIX = "The schema stored with the table cannot be read: "
SUFFIX = ". Rewrite the table, or adopt a schema for it."


def edited(change: Callable[[dict[str, Any]], None]) -> str:
    """Return the JSON of a stored schema after a change."""
    body = json.loads(dump(STORED))
    change(body)
    return json.dumps(body)


@pytest.mark.parametrize(
    ("changes", "body"),
    [
        ({"dtype": 3}, "field 'x' has 'dtype': 3; expected a string"),
        ({"shape": "x"}, "field 'x' has 'shape': \"x\"; expected a list"),
        ({"shape": [3]}, "Field 'x' has shape (3,), but Scalar stores single values. Use Tensor() or Npy()"),
        ({"nullable": "maybe"}, "field 'x' has 'nullable': \"maybe\"; expected a boolean"),
        ({"codec": None}, "field 'x' has 'codec': null; expected an object"),
        ({"codec": {}}, "the codec of field 'x' has no 'name'"),
        (
            {"codec": {"name": "scalar", "foo": 1}},
            "codec 'scalar' was stored with invalid options {'foo': 1}; its options are: type",
        ),
        ({"name": 3}, "field 0 has 'name': 3; expected a string"),
        ({"name": "image"}, "Schema 'S' got several fields with the name image; expected unique names. Rename them"),
    ],
)
def test_an_invalid_stored_schema_raises_a_clear_message(changes: Mapping[str, Any], body: str) -> None:
    """The message names the field and what is wrong with it, without Python's own words or a doubled full stop."""
    with pytest.raises(DataError) as caught:
        load(edited(lambda schema: schema["fields"][0].update(changes)))

    assert str(caught.value) == f"{PREFIX}{body}{SUFFIX}"


# Without full stops: two of them in a message come from Penstock then.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="."), max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_any_edited_schema_loads_or_raises_data_error(data: st.DataObject) -> None:
    """Any JSON in place of a value of a stored schema loads, or raises DataError with a clear message."""

    def change(schema: dict[str, Any]) -> None:
        field = data.draw(st.sampled_from([schema, schema["fields"][0], schema["fields"][1]["codec"]]))
        key = data.draw(st.sampled_from(sorted(field)))
        field[key] = data.draw(JSON)

    try:
        load(edited(change))
    except DataError as error:
        text = str(error)
        assert text.startswith(PREFIX)
        assert ".." not in text.replace("...", "")
        assert not any(word in text for word in ("object is not", "KeyError", "__init__", "NoneType"))


@pytest.mark.parametrize(
    ("field", "changes", "body"),
    [
        (
            0,
            {"dtype": "int8"},
            "Column 'x' is int64 in the files of {}. The schema stored with them expects single values of int8",
        ),
        (
            0,
            {"dtype": "str"},
            "Column 'x' is int64 in the files of {}. The schema stored with them expects single values of text",
        ),
        (
            0,
            {"codec": {"name": "npy"}},
            "Column 'x' is int64 in the files of {}. The schema stored with them expects bytes (Npy())",
        ),
        (
            1,
            {"codec": {"name": "tensor"}},
            "Column 'image' is binary in the files of {}. The schema stored with them expects lists or tensors of uint8 (4,)",
        ),
    ],
)
def test_a_stored_schema_must_fit_the_files(tmp_path: Path, field: int, changes: Mapping[str, Any], body: str) -> None:
    """A stored schema that differs from the columns of the files raises DataError when the table is opened."""
    ps.write(tmp_path / "t", STORED, [{"x": 1, "image": np.zeros(4, np.uint8)}])
    common = pq.read_schema(tmp_path / "t" / "_common_metadata")
    text = edited(lambda schema: schema["fields"][field].update(changes))
    pq.write_metadata(common.with_metadata({**common.metadata, KEY: text.encode()}), tmp_path / "t" / "_common_metadata")

    with pytest.raises(DataError) as caught:
        ps.open(tmp_path / "t")

    assert str(caught.value).startswith(body.format(tmp_path / "t"))
    assert str(caught.value).endswith("Adopt one that fits, penstock.adopt(url, schema), or write the table anew.")
