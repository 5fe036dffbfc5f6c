"""The stored schema of a Petastorm dataset as a plain value."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from penstock.errors import ArgumentError
from penstock.formats.petastorm.pickle.io import Global, Instance, PickleProblem, interpret, kind_of, to_pickle
from penstock.formats.petastorm.pickle.names import CODECS, NUMPY, DType

__all__ = [
    "ARRAY",
    "IMAGE",
    "PACKED_ARRAY",
    "SCALAR",
    "SparkType",
    "StoredCodec",
    "StoredField",
    "StoredSchema",
    "load_unischema",
    "pickle_unischema",
]

SCALAR, ARRAY, PACKED_ARRAY, IMAGE = (f"petastorm.codecs.{name}" for name in CODECS)
"""The names of the codecs."""

UNISCHEMA, FIELD = (Global("petastorm.unischema", name) for name in ("Unischema", "UnischemaField"))
TYPES: dict[Global, Any] = {
    **{Global("numpy", name): kind for name, kind in NUMPY.items()},
    **{Global("builtins", kind.__name__): kind for kind in (bool, bytes, float, int, str)},
    Global("decimal", "Decimal"): Decimal,
}
RESERVED = frozenset(
    {"_name", "_fields", "fields", "create_schema_view", "as_spark_schema", "make_namedtuple", "make_namedtuple_tf"}
    | {"_get_namedtuple", "from_arrow_schema"}
)
"""Attributes of a Unischema; a field with such a name is not an attribute."""

MAX_FIELDS = 100_000
MAX_DIMENSIONS = 32
MAX_PARTS = 500_000
MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class SparkType:
    """A Spark type.

    Attributes:
        name: The name of its class, like `DecimalType`.
        options: Its attributes, like `precision` and `scale`.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredCodec:
    """A codec of Petastorm, or of a user.

    Attributes:
        name: The full name of its class, like `petastorm.codecs.NdarrayCodec`.
        options: Its attributes without the leading underscore: `image_codec` and `quality` of images, `spark_type` of
            scalars (a `SparkType`), and those of the codecs of users.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spark_type(self) -> SparkType | None:
        """The Spark type of a scalar."""
        spark_type = self.options.get("spark_type")
        return spark_type if isinstance(spark_type, SparkType) else None


@dataclass(frozen=True, slots=True)
class StoredField:
    """A field of a Unischema.

    Attributes:
        name: The column.
        numpy_dtype: A NumPy type like `numpy.int32`, a dtype, a Python type, or `decimal.Decimal`.
        shape: The shape of a cell; None for a size that differs from cell to cell.
        codec: The codec; None for values that Parquet stores itself.
        nullable: Whether a cell may be null.
    """

    name: str
    numpy_dtype: Any
    shape: tuple[int | None, ...]
    codec: StoredCodec | None
    nullable: bool


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A Unischema: its name and its fields.

    Example:
        >>> schema = StoredSchema("Hello", (StoredField("id", np.int32, (), None, False),))
        >>> load_unischema(pickle_unischema(schema)) == schema
        True
    """

    name: str
    fields: tuple[StoredField, ...]


def load_unischema(data: bytes) -> StoredSchema:
    """Return the schema in the pickle of a Unischema of any version of Petastorm, without executing it.

    Raises:
        PickleProblem: If it is not a Unischema.
    """
    value = interpret(data)
    state = value.state if isinstance(value, Instance) and value.kind == UNISCHEMA else None
    if not isinstance(state, dict):
        raise PickleProblem(f"it holds {kind_of(value)}, and a {UNISCHEMA} was expected")
    name, fields = state.get("_name"), state.get("_fields")
    if type(name) is not str or not isinstance(fields, dict) or len(fields) > MAX_FIELDS:
        raise PickleProblem(f"its Unischema is called {kind_of(name)} and has {kind_of(fields)} of fields")
    budget = [MAX_PARTS]
    stored = tuple(_field(field, budget) for field in fields.values())
    if len({field.name for field in stored}) < len(stored):
        raise PickleProblem("its Unischema has two fields of one name")
    return StoredSchema(_text(name), stored)


def _field(instance: Any, budget: list[int]) -> StoredField:
    """Return a field; the message of a problem has its name."""
    if not isinstance(instance, Instance) or instance.kind != FIELD or not 3 <= len(instance.parts) <= 5:  # noqa: PLR2004 - the parts of a field
        raise PickleProblem(f"{kind_of(instance)} stands where a {FIELD} was expected")
    name, dtype, shape, codec, nullable = (*instance.parts, None, False)[:5] if len(instance.parts) < 5 else instance.parts  # noqa: PLR2004
    if type(name) is not str or not name:
        raise PickleProblem(f"{kind_of(name)} stands where the name of a field was expected")
    try:
        return StoredField(_text(name), _dtype(dtype), _shape(shape), _codec(codec, budget), bool(_plain(nullable, budget)))
    except PickleProblem as problem:
        raise PickleProblem(f"its field {name[:100]!r} makes no sense: {problem}") from problem.__cause__


def _text(name: str) -> str:
    """Check that a name is Unicode; Python 2 may have written any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise PickleProblem(f"a name in it is no Unicode: {name[:100]!a}") from error
    return name


def _dtype(value: Any) -> Any:
    if isinstance(value, DType):
        return value.numpy()
    if type(value) is Global and value in TYPES:
        return TYPES[value]
    raise PickleProblem(f"{kind_of(value)} stands where a type of NumPy was expected")


def _shape(value: Any) -> tuple[int | None, ...]:
    if type(value) not in (tuple, list) or len(value) > MAX_DIMENSIONS:
        raise PickleProblem(f"{kind_of(value)} stands where a shape was expected")
    if not all(size is None or (isinstance(size, (int, np.integer)) and 0 <= size < 2**31) for size in value):
        raise PickleProblem("its shape has sizes that are none")
    return tuple(None if size is None else int(size) for size in value)


def _codec(value: Any, budget: list[int]) -> StoredCodec | None:
    if value is None:
        return None
    if not isinstance(value, Instance) or (value.kind.known and value.kind.module != "petastorm.codecs"):
        raise PickleProblem(f"{kind_of(value)} stands where a codec was expected")
    return StoredCodec(str(value.kind), _options(value.state, budget))


def _options(state: Any, budget: list[int], depth: int = 0) -> dict[str, Any]:
    """Return the attributes of an object, as plain values."""
    if state is None:
        return {}
    if not isinstance(state, dict) or not all(type(name) is str for name in state):
        raise PickleProblem(f"{kind_of(state)} stands where attributes were expected")
    return {name.removeprefix("_"): _plain(value, budget, depth + 1) for name, value in state.items()}


def _plain(value: Any, budget: list[int], depth: int = 0) -> Any:
    """Return a value as JSON can hold it, or a SparkType. `budget` limits the number of parts, which may be shared."""
    budget[0] -= 1
    if budget[0] < 0 or depth > MAX_DEPTH:
        raise PickleProblem(f"its codecs have more than {MAX_PARTS} parts, or parts more than {MAX_DEPTH} deep in each other")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [_plain(item, budget, depth + 1) for item in value]
    if isinstance(value, dict):
        return _options(value, budget, depth)
    if isinstance(value, Instance) and value.kind.module == "pyspark.sql.types":
        return SparkType(value.kind.name, _options(value.state, budget, depth))
    return str(value) if type(value) is Global else f"<{kind_of(value)}>"


def pickle_unischema(schema: StoredSchema) -> bytes:
    """Return the pickle of a Unischema for Petastorm, with names of Petastorm, NumPy and Spark only.

    Raises:
        ArgumentError: If a field has another dtype or codec.
    """
    fields = {field.name: Instance(FIELD, _field_parts(field)) for field in schema.fields}
    attributes = {name: instance for name, instance in fields.items() if name not in RESERVED and not name.startswith("__")}
    state = {"_name": schema.name, "_fields": OrderedDict(fields), **attributes}
    return to_pickle(Instance(UNISCHEMA, (), state))


def _field_parts(field: StoredField) -> tuple[Any, ...]:
    kind = field.numpy_dtype.type if isinstance(field.numpy_dtype, np.dtype) else field.numpy_dtype
    dtype = next((name for name, known in TYPES.items() if known is kind), None)
    if dtype is None or (field.codec is not None and field.codec.name not in (SCALAR, ARRAY, PACKED_ARRAY, IMAGE)):
        msg = f"Field {field.name!r} has the dtype {field.numpy_dtype!r} and the codec {field.codec!r}. Petastorm has others. "
        raise ArgumentError(msg + "Give one that it has.")
    return (field.name, dtype, field.shape, None if field.codec is None else _codec_instance(field.codec), field.nullable)


def _codec_instance(codec: StoredCodec) -> Instance:
    module, _, name = codec.name.rpartition(".")
    state = {
        f"_{option}": _spark_instance(value) if isinstance(value, SparkType) else value
        for option, value in codec.options.items()
    }
    return Instance(Global(module, name), (), state or None)


def _spark_instance(kind: SparkType) -> Instance:
    return Instance(Global("pyspark.sql.types", kind.name), (), dict(kind.options) or None)
