"""`Field` and `Schema`, which describe columns, and `Codec`, which stores their cells."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import prod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._blobs import Blobs
from penstock.dtypes import numpy_type
from penstock.errors import ArgumentError, ColumnNotFoundError, DataError, MissingExtraError

__all__ = ["CellCodec", "CellProblem", "Codec", "Field", "Schema"]

PYTHON_TYPES: dict[Any, Any] = {
    bytes: np.dtype("S"),
    str: np.dtype("U"),
    dt.date: np.dtype("datetime64[D]"),
    dt.datetime: np.dtype("datetime64[us]"),
    dt.timedelta: np.dtype("timedelta64[us]"),
    Decimal: np.dtype(object),
}
MAX_DIMENSIONS = 32


class CellProblem(DataError):  # noqa: N818 - it becomes a part of the error that users get
    """A cell that cannot be decoded: its number among the given cells, the reason and what to do.

    Example:
        >>> CellProblem(3, "it is empty").row
        3
    """

    def __init__(self, row: int, problem: str) -> None:
        """Store the row and the problem."""
        super().__init__(row, problem)
        self.row, self.problem = row, problem

    def __str__(self) -> str:
        """Return the problem."""
        return self.problem


class Codec(ABC):
    """The base class of codecs: how the cells of a column are stored in Arrow and Parquet.

    A codec is a frozen dataclass. Its `name` and its fields, whose values have to be JSON, are stored with the table.
    A codec that stores cells as bytes is a `CellCodec`.

    Example:
        >>> from penstock.codecs import Tensor
        >>> isinstance(Tensor(), Codec), Tensor.name
        (True, 'tensor')
    """

    name: ClassVar[str]

    def options(self) -> Mapping[str, Any]:
        """Return the options that are stored with the name; `of` takes them."""
        return {option: getattr(self, option) for option in getattr(self, "__dataclass_fields__", ())}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Codec:
        """Return the codec with stored options, which are read from a file and can be invalid.

        Raises:
            TypeError: If the codec does not have an option; an invalid value raises a `ValueError`.
        """
        return cls(**options)

    def check(self, field: Field) -> None:  # noqa: B027 - most codecs store any field
        """Check that this codec can store the field.

        Raises:
            ArgumentError: If it cannot.
        """

    @abstractmethod
    def storage(self, field: Field) -> pa.DataType:
        """Return the Arrow type of stored cells."""

    @abstractmethod
    def encode_column(self, field: Field, cells: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        """Return stored cells; the given cells fit the field, and None becomes null."""


class CellCodec(Codec):
    """The base class of codecs that store each cell as bytes, also for codecs of your own.

    Example:
        >>> import json
        >>> @dataclass(frozen=True)
        ... class JsonCodec(CellCodec):
        ...     name = "json"
        ...
        ...     def encode(self, field, cell):
        ...         return json.dumps(cell.tolist()).encode()
        ...
        ...     def decode(self, field, cell):
        ...         return np.array(json.loads(bytes(cell)), field.dtype)
        >>> codec = JsonCodec()
        >>> codec.decode(Field("x", np.int32, (2,), codec), codec.encode(Field("x", np.int32, (2,), codec), np.array([1, 2])))
        array([1, 2], dtype=int32)
    """

    compressed: ClassVar[bool] = False
    """Whether encoded cells are compressed, so that the writer does not compress them again."""

    copied: ClassVar[bool] = False
    """Whether decoding is little more than a copy, so that small cells are decoded before they are needed."""

    @abstractmethod
    def encode(self, field: Field, cell: Any) -> bytes:
        """Return a cell as bytes; it fits the field and is not None."""

    @abstractmethod
    def decode(self, field: Field, cell: memoryview) -> Any:
        """Return a decoded cell. Exceptions are reported with the location of the cell."""

    def storage(self, field: Field) -> pa.DataType:  # noqa: ARG002 - subclasses use it
        """Return the type of stored cells, bytes."""
        return pa.binary()

    def encode_column(self, field: Field, cells: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        """Return encoded cells."""
        return pa.array([None if cell is None else self.encode(field, cell) for cell in cells], type=self.storage(field))

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode cells of one shape into the rows of an array; the rows of nulls are left unchanged.

        Raises:
            CellProblem: If a cell cannot be decoded.
        """
        for row, cell in cells.present():
            decoded = self._decoded(field, row, cell)
            check_shape(field, row, decoded)
            out[row] = decoded

    def view(self, field: Field, cells: Blobs) -> npt.NDArray[Any] | None:  # noqa: ARG002 - subclasses use them
        """Return cells of one shape as an array that shares their memory; None if that is not possible."""
        return None

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Return a list of decoded cells, with None for nulls.

        Raises:
            CellProblem: If a cell cannot be decoded.
        """
        decoded: list[Any] = [None] * len(cells)
        for row, cell in cells.present():
            decoded[row] = self._decoded(field, row, cell)
            check_shape(field, row, decoded[row])
        return decoded

    def decode_resized(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:  # noqa: ARG002 - subclasses use them
        """Decode images and resize them into the rows of an array; only image codecs support it."""
        msg = f"Column {field.name!r} got Resize(), but its codec {self!r} does not store images. Remove it, or use Pad()."
        raise ArgumentError(msg)

    def _decoded(self, field: Field, row: int, cell: memoryview) -> Any:
        try:
            return self.decode(field, cell)
        except MissingExtraError:
            raise  # the cell is not at fault
        except Exception as error:
            problem = f"{self.name} cannot decode {len(cell)} bytes: {error}. Check what wrote the cell."
            raise CellProblem(row, problem) from error


def check_shape(field: Field, row: int, cell: Any) -> None:
    """Check the dtype and the shape of a decoded cell.

    Raises:
        CellProblem: If it does not fit the field.
    """
    if not isinstance(cell, np.ndarray) or field.fits(cell):
        return
    problem = f"it holds {cell.dtype} {cell.shape}, and the schema says {field.dtype} {field.shape}. "
    raise CellProblem(row, problem + "Rewrite it, or adopt a schema that fits: penstock.adopt(url, schema).")


@dataclass(frozen=True, slots=True)
class Field:
    """One column: its name, the dtype of its values, the shape of one cell and its codec.

    Args:
        name: The column's name.
        dtype: A NumPy dtype or its name, or `str`, `bytes`, `Decimal`, `date`, `datetime`, `timedelta`.
        shape: The shape of one cell; None stands for a dimension that differs from row to row.
        codec: How cells are stored; by default the codec that `penstock.codecs.default` returns.
        nullable: Whether cells can be null.

    Raises:
        ArgumentError: If the dtype or the shape is not valid, or the codec cannot store such cells.

    Example:
        >>> import numpy as np
        >>> Field("image", np.uint8, (128, 256, 3))
        Field(name='image', dtype=dtype('uint8'), shape=(128, 256, 3), codec=None, nullable=False)
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] = ()
    codec: Codec | None = None
    nullable: bool = field(default=False, kw_only=True)

    def __init__(
        self, name: str, dtype: Any, shape: Sequence[int | None] = (), codec: Codec | None = None, *, nullable: bool = False
    ) -> None:
        """Check and store the description of a column."""
        object.__setattr__(self, "name", _valid_name(name))
        object.__setattr__(self, "dtype", _valid_dtype(name, dtype))
        object.__setattr__(self, "shape", _valid_shape(name, shape))
        object.__setattr__(self, "codec", codec)
        object.__setattr__(self, "nullable", bool(nullable))
        if codec is not None:
            if isinstance(codec, type) or not isinstance(codec, Codec):
                msg = f"Field {name!r} got codec={codec!r}; expected a codec object, for example penstock.codecs.Png()."
                raise ArgumentError(msg)
            codec.check(self)

    @property
    def is_dense(self) -> bool:
        """Whether all cells have one size, so that a batch of them is one array."""
        return None not in self.shape and self.dtype.kind != "O" and self.dtype.itemsize > 0

    def fits(self, cell: npt.NDArray[Any]) -> bool:
        """Return whether an array has the dtype and the shape of a cell; text and bytes can have any length.

        Example:
            >>> Field("x", np.int32, (None, 2)).fits(np.zeros((5, 2), np.int32))
            True
        """
        if self.dtype.itemsize == 0 or self.dtype.kind == "O":
            same_dtype = cell.dtype.kind == self.dtype.kind
        else:
            same_dtype = cell.dtype == self.dtype
        if not same_dtype or len(cell.shape) != len(self.shape):
            return False
        return all(size in (None, actual) for size, actual in zip(self.shape, cell.shape, strict=True))

    def with_codec(self, codec: Codec) -> Field:
        """Return this field with another codec.

        Raises:
            ArgumentError: If the codec cannot store such cells.
        """
        return Field(self.name, self.dtype, self.shape, codec, nullable=self.nullable)


def _valid_name(name: Any) -> str:
    if isinstance(name, str) and is_unicode(name):
        return name
    raise ArgumentError(f"Field() got name={name!r}; expected the column's name as a str.")


def is_unicode(text: str) -> bool:
    r"""Return whether a text can be encoded as UTF-8; a Python str can also hold single surrogates.

    Example:
        >>> is_unicode("é"), is_unicode(chr(0xD800))
        (True, False)
    """
    return text.encode(errors="ignore").decode() == text


def _valid_dtype(name: str, dtype: Any) -> np.dtype[Any]:
    """Return a dtype in native byte order; text and bytes without a length unless one is given."""
    expected = "expected a NumPy dtype, str, bytes, Decimal, date, datetime or timedelta"
    if dtype is None:  # which is a float to NumPy
        raise ArgumentError(f"Field {name!r} got dtype=None; {expected}.")
    try:
        valid = np.dtype(PYTHON_TYPES[dtype]) if isinstance(dtype, type) and dtype in PYTHON_TYPES else np.dtype(dtype)
    except TypeError as error:
        raise ArgumentError(f"Field {name!r} got dtype={dtype!r}; {expected}. NumPy says: {error}.") from None
    if valid.kind == "O" and isinstance(dtype, type) and dtype not in (object, np.object_, Decimal):
        advice = "For other objects use dtype=object with a codec of your own."
        if dtype is dt.time:
            advice = "For times of day use 'timedelta64[us]' with codec=penstock.codecs.Scalar('time64[us]')."
        raise ArgumentError(f"Field {name!r} got dtype={dtype!r}; {expected}. {advice}")
    if valid.kind == "T":  # NumPy's text of any length
        valid = np.dtype("U")
    if valid.names is not None or valid.subdtype is not None:
        msg = f"Field {name!r} got dtype={dtype!r}, which has several parts; expected a plain dtype. Use a field for each part."
        raise ArgumentError(msg)
    if valid.kind in "mM" and np.datetime_data(valid)[0] == "generic":
        raise ArgumentError(f"Field {name!r} got dtype={dtype!r} without a unit; expected one, for example 'datetime64[us]'.")
    native: np.dtype[Any] = valid.newbyteorder("=")
    return native


def _valid_shape(name: str, shape: Any) -> tuple[int | None, ...]:
    try:
        sizes = tuple(None if size is None else int(size) for size in shape)
        # A batch has one dimension more. Its bytes are compared with a limit when memory is allocated.
        fits = len(sizes) < MAX_DIMENSIONS and prod(size or 1 for size in sizes) < 2**63
        if fits and all(size is None or (size >= 0 and size == given) for size, given in zip(sizes, shape, strict=True)):
            return sizes
    except (TypeError, ValueError):
        pass
    msg = f"Field {name!r} got shape={shape!r}; expected non-negative sizes or None, for example (None, 3), or () for a scalar."
    raise ArgumentError(msg)


def _describe_field(column: Field) -> str:
    """Return dtype, shape, codec and nullability as text."""
    kind = {"U": "text", "S": "bytes"}.get(column.dtype.kind, str(column.dtype)) if not column.dtype.itemsize else column.dtype
    parts = [f"{kind} {column.shape}" if column.shape else f"{kind}"]
    parts += [] if column.codec is None else [repr(column.codec)]
    return "  ".join([*parts, *(["nullable"] if column.nullable else [])])


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a dataset, in order.

    Args:
        name: The name of the schema.
        fields: Its columns.

    Raises:
        ArgumentError: If two columns have the same name, or `fields` are not `Field` objects.

    Example:
        >>> import numpy as np
        >>> schema = Schema("Hello", [Field("id", np.int32), Field("image", np.uint8, (8, 8))])
        >>> schema.names
        ('id', 'image')
        >>> schema["image"].shape
        (8, 8)
    """

    name: str
    fields: tuple[Field, ...]

    def __init__(self, name: str, fields: Sequence[Field]) -> None:
        """Store the columns."""
        if not isinstance(name, str):
            raise ArgumentError(f"Schema() got name={name!r}; expected a str, or '' for no name.")
        if not isinstance(fields, Iterable):
            msg = f"Schema {name!r} got fields={fields!r}; expected Field objects, for example "
            raise ArgumentError(msg + "[penstock.Field('id', numpy.int32)].")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "fields", tuple(fields))
        for column in self.fields:
            if not isinstance(column, Field):
                msg = f"Schema {name!r} got {column!r}; expected Field objects, for example penstock.Field('id', numpy.int32)."
                raise ArgumentError(msg)
        repeated = sorted(column for column, count in Counter(self.names).items() if count > 1)
        if repeated:
            msg = f"Schema {name!r} got several fields with the name {', '.join(repeated)}; expected unique names. Rename them."
            raise ArgumentError(msg)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.fields)

    def __getitem__(self, name: str) -> Field:
        """Return one column by name."""
        for column in self.fields:
            if column.name == name:
                return column
        raise ColumnNotFoundError.of(name, self.names, table=f"schema {self.name!r}")

    def __str__(self) -> str:
        """Return a text with a line for each column: name, type, codec, and whether it is nullable.

        Example:
            >>> print(Schema("Hello", [Field("id", np.int32), Field("tokens", np.int64, (None,), nullable=True)]))
            Schema Hello, 2 columns
              id      int32
              tokens  int64 (None,)  nullable
        """
        width = max(map(len, self.names), default=0)
        count = f"{len(self)} column{'' if len(self) == 1 else 's'}"
        lines = [f"  {column.name:<{width}}  {_describe_field(column)}" for column in self.fields]
        return "\n".join([f"Schema {self.name}, {count}" if self.name else f"Schema, {count}", *lines])

    def __contains__(self, name: object) -> bool:
        """Return whether there is a column with a name."""
        return name in self.names

    def __iter__(self) -> Iterator[Field]:
        """Return an iterator over the columns."""
        return iter(self.fields)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.fields)

    @classmethod
    def from_arrow(cls, schema: pa.Schema, name: str = "") -> Schema:
        """Return the columns of an Arrow schema as NumPy types.

        Example:
            >>> Schema.from_arrow(pa.schema({"x": pa.int64()}))["x"].dtype
            dtype('int64')
        """
        fields = []
        for column in schema:
            dtype, shape = numpy_type(column.type)
            fields.append(Field(column.name, dtype, shape, nullable=column.nullable))
        return cls(name, fields)
