"""The schema that Petastorm pickles with a dataset, as a value with nothing of Petastorm behind it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from penstock.errors import ArgumentError
from penstock.formats.petastorm.pickle.io import Global, Instance, PickleProblem, interpret, kind_of, pickled
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
"""What Petastorm calls its codecs."""

UNISCHEMA, FIELD = (Global("petastorm.unischema", name) for name in ("Unischema", "UnischemaField"))
TYPES: dict[Global, Any] = {
    **{Global("numpy", name): found for name, found in NUMPY.items()},
    **{Global("builtins", found.__name__): found for found in (bool, bytes, float, int, str)},
    Global("decimal", "Decimal"): Decimal,
}
TAKEN = frozenset(
    {"_name", "_fields", "fields", "create_schema_view", "as_spark_schema", "make_namedtuple", "make_namedtuple_tf"}
    | {"_get_namedtuple", "from_arrow_schema"}
)
"""Attributes of a Unischema that no field can have the name of; such a field has none of its own."""

MOST_FIELDS = 100_000
MOST_DIMENSIONS = 32
MOST_PARTS = 500_000
DEEPEST = 16


@dataclass(frozen=True, slots=True)
class SparkType:
    """A type of Spark.

    Attributes:
        name: What `pyspark.sql.types` calls it, like `DecimalType`.
        options: What it was made with, like `precision` and `scale`.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredCodec:
    """A codec of Petastorm, or of a user of it.

    Attributes:
        name: The whole name of its class, like `petastorm.codecs.NdarrayCodec`.
        options: Its attributes without the underscore that they begin with: `image_codec` and `quality` of an image,
            `spark_type` of a scalar, which is a `SparkType`, and whatever a user's own has.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spark_type(self) -> SparkType | None:
        """The type of Spark that a scalar is stored as."""
        found = self.options.get("spark_type")
        return found if isinstance(found, SparkType) else None


@dataclass(frozen=True, slots=True)
class StoredField:
    """A field of a Unischema.

    Attributes:
        name: The column's name.
        numpy_dtype: What was given: a type of NumPy like `numpy.int32`, a dtype, a type of Python, or `decimal.Decimal`.
        shape: The shape of a cell; None for sizes that differ.
        codec: What stores it; None for what Parquet stores itself.
        nullable: Whether it may be null.
    """

    name: str
    numpy_dtype: Any
    shape: tuple[int | None, ...]
    codec: StoredCodec | None
    nullable: bool


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A Unischema: its name, and its fields in their order.

    Example:
        >>> schema = StoredSchema("Hello", (StoredField("id", np.int32, (), None, False),))
        >>> load_unischema(pickle_unischema(schema)) == schema
        True
    """

    name: str
    fields: tuple[StoredField, ...]


def load_unischema(data: bytes) -> StoredSchema:
    """Return the schema in a pickle of a Unischema, by any version of Petastorm; nothing of it is run.

    Raises:
        PickleProblem: If there is none.
    """
    found = interpret(data)
    state = found.state if isinstance(found, Instance) and found.kind == UNISCHEMA else None
    if not isinstance(state, dict):
        raise PickleProblem(f"it holds {kind_of(found)}, and a {UNISCHEMA} was expected")
    name, fields = state.get("_name"), state.get("_fields")
    if type(name) is not str or not isinstance(fields, dict) or len(fields) > MOST_FIELDS:
        raise PickleProblem(f"its Unischema is called {kind_of(name)} and has {kind_of(fields)} of fields")
    left = [MOST_PARTS]
    found = tuple(_field(each, left) for each in fields.values())
    if len({each.name for each in found}) < len(found):
        raise PickleProblem("its Unischema has two fields of one name")
    return StoredSchema(_text(name), found)


def _field(made: Any, left: list[int]) -> StoredField:
    """Return a field; whatever is wrong with it is told with its name."""
    if not isinstance(made, Instance) or made.kind != FIELD or not 3 <= len(made.parts) <= 5:  # noqa: PLR2004 - what it has
        raise PickleProblem(f"{kind_of(made)} stands where a {FIELD} was expected")
    name, dtype, shape, codec, nullable = (*made.parts, None, False)[:5] if len(made.parts) < 5 else made.parts  # noqa: PLR2004
    if type(name) is not str or not name:
        raise PickleProblem(f"{kind_of(name)} stands where the name of a field was expected")
    try:
        return StoredField(_text(name), _dtype(dtype), _shape(shape), _codec(codec, left), bool(_plain(nullable, left)))
    except PickleProblem as problem:
        raise PickleProblem(f"its field {name[:100]!r} makes no sense: {problem}") from problem.__cause__


def _text(name: str) -> str:
    """Return a name, which Python 2 may have written in any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise PickleProblem(f"a name in it is no Unicode: {name[:100]!a}") from error
    return name


def _dtype(told: Any) -> Any:
    if isinstance(told, DType):
        return told.numpy()
    if type(told) is Global and told in TYPES:
        return TYPES[told]
    raise PickleProblem(f"{kind_of(told)} stands where a type of NumPy was expected")


def _shape(told: Any) -> tuple[int | None, ...]:
    if type(told) not in (tuple, list) or len(told) > MOST_DIMENSIONS:
        raise PickleProblem(f"{kind_of(told)} stands where a shape was expected")
    if not all(size is None or (isinstance(size, (int, np.integer)) and 0 <= size < 2**31) for size in told):
        raise PickleProblem("its shape has sizes that are none")
    return tuple(None if size is None else int(size) for size in told)


def _codec(told: Any, left: list[int]) -> StoredCodec | None:
    if told is None:
        return None
    if not isinstance(told, Instance) or (told.kind.known and told.kind.module != "petastorm.codecs"):
        raise PickleProblem(f"{kind_of(told)} stands where a codec was expected")
    return StoredCodec(str(told.kind), _options(told.state, left))


def _options(state: Any, left: list[int], depth: int = 0) -> dict[str, Any]:
    """Return the attributes of an object, as plain values."""
    if state is None:
        return {}
    if not isinstance(state, dict) or not all(type(name) is str for name in state):
        raise PickleProblem(f"{kind_of(state)} stands where attributes were expected")
    return {name.removeprefix("_"): _plain(value, left, depth + 1) for name, value in state.items()}


def _plain(value: Any, left: list[int], depth: int = 0) -> Any:
    """Return a value as one that JSON can hold, types of Spark aside; `left` counts, for parts may be shared without end."""
    left[0] -= 1
    if left[0] < 0 or depth > DEEPEST:
        raise PickleProblem(f"its codecs have more than {MOST_PARTS} parts, or parts more than {DEEPEST} deep in each other")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [_plain(each, left, depth + 1) for each in value]
    if isinstance(value, dict):
        return _options(value, left, depth)
    if isinstance(value, Instance) and value.kind.module == "pyspark.sql.types":
        return SparkType(value.kind.name, _options(value.state, left, depth))
    return str(value) if type(value) is Global else f"<{kind_of(value)}>"


def pickle_unischema(schema: StoredSchema) -> bytes:
    """Return the pickle of a Unischema, as Petastorm reads it: all that it names is Petastorm's, NumPy's or Spark's.

    Raises:
        ArgumentError: If a field has a dtype or a codec that these do not have.
    """
    fields = {each.name: Instance(FIELD, _parts(each)) for each in schema.fields}
    attributes = {name: made for name, made in fields.items() if name not in TAKEN and not name.startswith("__")}
    state = {"_name": schema.name, "_fields": OrderedDict(fields), **attributes}
    return pickled(Instance(UNISCHEMA, (), state))


def _parts(told: StoredField) -> tuple[Any, ...]:
    kind = told.numpy_dtype.type if isinstance(told.numpy_dtype, np.dtype) else told.numpy_dtype
    dtype = next((name for name, found in TYPES.items() if found is kind), None)
    if dtype is None or (told.codec is not None and told.codec.name not in (SCALAR, ARRAY, PACKED_ARRAY, IMAGE)):
        msg = f"Field {told.name!r} has the dtype {told.numpy_dtype!r} and the codec {told.codec!r}. Petastorm has others. "
        raise ArgumentError(msg + "Give one that it has.")
    return (told.name, dtype, told.shape, None if told.codec is None else _made(told.codec), told.nullable)


def _made(codec: StoredCodec) -> Instance:
    module, _, name = codec.name.rpartition(".")
    state = {f"_{option}": _spark(value) if isinstance(value, SparkType) else value for option, value in codec.options.items()}
    return Instance(Global(module, name), (), state or None)


def _spark(told: SparkType) -> Instance:
    return Instance(Global("pyspark.sql.types", told.name), (), dict(told.options) or None)
