"""The type table: the NumPy dtype and shape of every Arrow type, and the page that shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import dtypes
from penstock.dtypes import is_fixed, numpy_type
from penstock.errors import DataError

PAGE = Path(__file__).parent.parent / "docs" / "types.md"
STORAGE = pa.struct({"data": pa.list_(pa.float32()), "shape": pa.list_(pa.int32(), 2)})
EXTENSION_METADATA = {"ARROW:extension:name": "arrow.variable_shape_tensor", "ARROW:extension:metadata": "{}"}
VARIABLE = pa.ipc.read_schema(pa.schema([pa.field("x", STORAGE, metadata=EXTENSION_METADATA)]).serialize()).field("x").type

SCALARS = {
    pa.bool_(): "bool",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.uint8(): "uint8",
    pa.uint16(): "uint16",
    pa.uint32(): "uint32",
    pa.uint64(): "uint64",
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.date32(): "datetime64[D]",
    pa.date64(): "datetime64[ms]",
    **{pa.time32(unit): f"timedelta64[{unit}]" for unit in ("s", "ms")},
    **{pa.time64(unit): f"timedelta64[{unit}]" for unit in ("us", "ns")},
    **{pa.timestamp(unit): f"datetime64[{unit}]" for unit in ("s", "ms", "us", "ns")},
    pa.timestamp("us", "Europe/Paris"): "datetime64[us]",
    **{pa.duration(unit): f"timedelta64[{unit}]" for unit in ("s", "ms", "us", "ns")},
    pa.dictionary(pa.int8(), pa.float32()): "float32",
    pa.run_end_encoded(pa.int32(), pa.int64()): "int64",
    pa.bool8(): "bool",
    pa.opaque(pa.int16(), "x", "y"): "int16",
}
OBJECTS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.binary(4),
    pa.decimal32(7, 2),
    pa.decimal64(10, 2),
    pa.decimal128(20, 2),
    pa.decimal256(50, 2),
    pa.struct({"a": pa.int32(), "b": pa.string()}),
    pa.map_(pa.string(), pa.int32()),
    pa.null(),
    pa.dictionary(pa.int8(), pa.string()),
    VARIABLE,
    pa.uuid(),
    pa.json_(),
]
NESTED: dict[Any, tuple[str, tuple[int | None, ...]]] = {
    pa.list_(pa.float32()): ("float32", (None,)),
    pa.large_list(pa.float32()): ("float32", (None,)),
    pa.list_view(pa.float32()): ("float32", (None,)),
    pa.large_list_view(pa.float32()): ("float32", (None,)),
    pa.list_(pa.list_(pa.string())): ("object", (None, None)),
    pa.list_(pa.float32(), 3): ("float32", (3,)),
    pa.list_(pa.list_(pa.bool_(), 3), 2): ("bool", (2, 3)),
    pa.list_(pa.list_(pa.float32()), 2): ("float32", (2, None)),
    pa.list_(pa.list_(pa.float32(), 3)): ("float32", (None, 3)),
    pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0]): ("float32", (3, 2)),
}
TABLE: dict[Any, tuple[str, tuple[int | None, ...]]] = {
    **{kind: (dtype, ()) for kind, dtype in SCALARS.items()},
    **dict.fromkeys(OBJECTS, ("object", ())),
    **NESTED,
}


@pytest.mark.parametrize("kind", TABLE, ids=str)
def test_every_type_has_a_dtype_and_a_shape(kind: Any) -> None:
    """The Arrow type alone decides dtype and shape; the shape is fixed unless it has objects or ragged dimensions."""
    dtype, shape = TABLE[kind]

    assert numpy_type(kind) == (np.dtype(dtype), shape)
    assert is_fixed(kind) == (dtype != "object" and None not in shape)


def test_the_page_shows_the_same_table() -> None:
    """The page lists exactly the tested types, each with its dtype, its shape and whether it is fixed."""
    lines = [line.split("|")[1:5] for line in PAGE.read_text().split("## Structs")[0].splitlines() if line.startswith("| `")]
    shown = {name.strip(" `"): tuple(cell.strip(" `") for cell in rest) for name, *rest in lines}

    assert shown == {
        str(kind).removeprefix("DataType"): (dtype, str(shape), "yes" if is_fixed(kind) else "no")
        for kind, (dtype, shape) in TABLE.items()
    }


def test_an_unknown_extension_type_is_its_storage_type() -> None:
    """An unknown extension type is treated as its storage type."""

    class Meters(pa.ExtensionType):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(pa.list_(pa.float32(), 2), "test.meters")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

    assert numpy_type(Meters()) == (np.dtype("float32"), (2,))
    assert dtypes.leaf_type(pa.list_(Meters())) == pa.float32()


@pytest.mark.parametrize("offset", range(10))
def test_booleans_are_read_from_any_offset(offset: int) -> None:
    """Booleans are read correctly from a slice that starts and ends inside a byte."""
    array = pa.array([True, None, False, False, True, None, True] * 5)[offset : offset + 11]

    found, marks = dtypes.values(array)

    assert marks is not None
    assert [bool(one) if there else None for one, there in zip(found, marks, strict=True)] == array.to_pylist()


def test_a_list_of_a_null_parent_counts_as_null() -> None:
    """A list is null if its parent is null, and its items are left out."""
    flat, length, valid = dtypes.items(pa.array([[1], [2, 3], None, [4]]), np.array([True, False, True, True]))

    assert (flat.to_pylist(), length.tolist()) == ([1, 4], [1, 0, 0, 1])
    assert valid is not None
    assert valid.tolist() == [True, False, False, True]


def test_a_struct_with_duplicate_field_names_raises() -> None:
    """A struct with two fields of one name raises DataError, because a dict would lose one of them."""
    array = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])

    with pytest.raises(DataError, match="has several fields with one name"):
        dtypes.python_values(array)
