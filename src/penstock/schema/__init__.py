"""What a dataset's columns are: `Field` and `Schema`, and what stores their cells: `Codec`."""

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
MOST_DIMENSIONS = 32


class CellProblem(DataError):  # noqa: N818 - a part of the error that the consumer gets
    """A cell that cannot be decoded: which of those given, what is wrong and what to do.

    Example:
        >>> CellProblem(3, "it is empty").row
        3
    """

    def __init__(self, row: int, problem: str) -> None:
        """Store which and what."""
        super().__init__(row, problem)
        self.row, self.problem = row, problem

    def __str__(self) -> str:
        """Return what is wrong."""
        return self.problem


class Codec(ABC):
    """How the cells of a column are stored in Arrow and Parquet.

    A codec is a frozen dataclass. Its `name` and its fields, which must be what JSON can hold, are stored with the table.
    One that stores cells as bytes is a `CellCodec`.

    Example:
        >>> from penstock.codecs import Tensor
        >>> isinstance(Tensor(), Codec), Tensor.name
        (True, 'tensor')
    """

    name: ClassVar[str]

    def options(self) -> Mapping[str, Any]:
        """Return what is stored with the name, for the codec to be made again from it."""
        return {option: getattr(self, option) for option in getattr(self, "__dataclass_fields__", ())}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Codec:
        """Return the codec that was stored with these options, which come from a file and may be anything.

        Raises:
            TypeError: If there is an option that the codec does not have; so do `ValueError`s of bad values.
        """
        return cls(**options)

    def check(self, field: Field) -> None:  # noqa: B027 - most store anything
        """Refuse a field whose cells cannot be stored so.

        Raises:
            ArgumentError: If they cannot.
        """

    @abstractmethod
    def storage(self, field: Field) -> pa.DataType:
        """Return the Arrow type that cells are stored in."""

    @abstractmethod
    def encode_column(self, field: Field, cells: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        """Return cells as they are stored; they fit the field, and those that are None are null."""


class CellCodec(Codec):
    """A codec that stores each cell as bytes; this is what to derive from for one of your own.

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
    """Whether cells are compressed already, so that the writer need not try to compress them again."""

    copied: ClassVar[bool] = False
    """Whether to decode a cell is little more than to copy it, so that small cells need not wait until they are needed."""

    @abstractmethod
    def encode(self, field: Field, cell: Any) -> bytes:
        """Return a cell, which fits the field and is not None, as bytes."""

    @abstractmethod
    def decode(self, field: Field, cell: memoryview) -> Any:
        """Return what was encoded. Whatever it raises is told with the place of the cell."""

    def storage(self, field: Field) -> pa.DataType:  # noqa: ARG002 - others look at it
        """Return the type of bytes."""
        return pa.binary()

    def encode_column(self, field: Field, cells: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        """Return cells as they are stored."""
        return pa.array([None if cell is None else self.encode(field, cell) for cell in cells], type=self.storage(field))

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode cells of a field whose shape is fixed into an array, a row each; null ones are left as they are.

        Raises:
            CellProblem: If one cannot be decoded.
        """
        for row, cell in cells.present():
            found = self._decoded(field, row, cell)
            check_shape(field, row, found)
            out[row] = found

    def view(self, field: Field, cells: Blobs) -> npt.NDArray[Any] | None:  # noqa: ARG002 - others look at them
        """Return cells of a field whose shape is fixed as an array of the memory they lie in; None where that cannot be."""
        return None

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Return decoded cells one by one, None for nulls.

        Raises:
            CellProblem: If one cannot be decoded.
        """
        found: list[Any] = [None] * len(cells)
        for row, cell in cells.present():
            found[row] = self._decoded(field, row, cell)
            check_shape(field, row, found[row])
        return found

    def decode_resized(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:  # noqa: ARG002 - others do
        """Decode images into an array of other sizes, a row each; only codecs of images can."""
        msg = f"Resize was asked for column {field.name!r}, whose codec {self!r} stores no images. Leave it out, or use Pad()."
        raise ArgumentError(msg)

    def _decoded(self, field: Field, row: int, cell: memoryview) -> Any:
        try:
            return self.decode(field, cell)
        except MissingExtraError:
            raise  # nothing is wrong with the cell
        except Exception as error:
            problem = f"{self.name} cannot decode {len(cell)} bytes: {error}. Check what wrote the cell."
            raise CellProblem(row, problem) from error


def check_shape(field: Field, row: int, cell: Any) -> None:
    """Refuse a decoded cell that is not what its field says.

    Raises:
        CellProblem: If the dtype or the shape differs.
    """
    if not isinstance(cell, np.ndarray) or field.fits(cell):
        return
    problem = f"it holds {cell.dtype} {cell.shape}, and the schema says {field.dtype} {field.shape}. "
    raise CellProblem(row, problem + "Write it anew, or adopt a schema that fits: penstock.adopt(url, schema).")


@dataclass(frozen=True, slots=True)
class Field:
    """One column: its name, the dtype of its values, the shape of one cell and what stores it.

    Args:
        name: The column's name.
        dtype: What `numpy.dtype` takes, or `str`, `bytes`, `Decimal`, `date`, `datetime`, `timedelta`.
        shape: The shape of one cell; None stands for a dimension that differs from row to row.
        codec: What stores the cells; where none is given, `penstock.codecs.default` says which.
        nullable: Whether cells may be null.

    Raises:
        ArgumentError: If the dtype or the shape is none, or the codec cannot store such cells.

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
        """Store what a column is; whatever `numpy.dtype` takes will do for `dtype`."""
        object.__setattr__(self, "name", _checked_name(name))
        object.__setattr__(self, "dtype", _checked_dtype(name, dtype))
        object.__setattr__(self, "shape", _checked_shape(name, shape))
        object.__setattr__(self, "codec", codec)
        object.__setattr__(self, "nullable", bool(nullable))
        if codec is not None:
            if isinstance(codec, type) or not isinstance(codec, Codec):
                msg = f"Field {name!r} got codec={codec!r}. A codec object was expected. Give one: penstock.codecs.Png()."
                raise ArgumentError(msg)
            codec.check(self)

    @property
    def is_dense(self) -> bool:
        """Whether cells of this field are all of one size, so that a batch of them is one array."""
        return None not in self.shape and self.dtype.kind != "O" and self.dtype.itemsize > 0

    def fits(self, cell: npt.NDArray[Any]) -> bool:
        """Return whether an array has the dtype and the shape of a cell; text and bytes may be of any length.

        Example:
            >>> Field("x", np.int32, (None, 2)).fits(np.zeros((5, 2), np.int32))
            True
        """
        if self.dtype.itemsize == 0 or self.dtype.kind == "O":
            alike = cell.dtype.kind == self.dtype.kind
        else:
            alike = cell.dtype == self.dtype
        same = len(cell.shape) == len(self.shape)
        return alike and same and all(size in (None, found) for size, found in zip(self.shape, cell.shape, strict=True))

    def with_codec(self, codec: Codec) -> Field:
        """Return this field stored by another codec.

        Raises:
            ArgumentError: If the codec cannot store such cells.
        """
        return Field(self.name, self.dtype, self.shape, codec, nullable=self.nullable)


def _checked_name(name: Any) -> str:
    if isinstance(name, str) and is_unicode(name):
        return name
    raise ArgumentError(f"Field got the name {name!r}. A text was expected. Give the column's name.")


def is_unicode(text: str) -> bool:
    r"""Return whether UTF-8 holds a text, as Arrow and files need it: halves of letters are text in Python alone.

    Example:
        >>> is_unicode("é"), is_unicode(chr(0xD800))
        (True, False)
    """
    return text.encode(errors="ignore").decode() == text


def _checked_dtype(name: str, dtype: Any) -> np.dtype[Any]:
    """Return what NumPy calls a type; text and bytes of no length in particular."""
    if dtype is None:  # which NumPy takes for a float
        msg = f"Field {name!r} got dtype=None. A NumPy dtype, str, bytes, Decimal, date or datetime was expected. Give one."
        raise ArgumentError(msg)
    try:
        found = np.dtype(PYTHON_TYPES[dtype]) if isinstance(dtype, type) and dtype in PYTHON_TYPES else np.dtype(dtype)
    except TypeError as error:
        msg = (
            f"Field {name!r} got dtype={dtype!r}, which NumPy does not know: {error}. A NumPy dtype, str, bytes, Decimal, date "
            "or datetime was expected. Give one."
        )
        raise ArgumentError(msg) from None
    if found.kind == "O" and isinstance(dtype, type) and dtype not in (object, np.object_, Decimal):
        clock = (
            " Times of a day are 'timedelta64[us]' with codec=penstock.codecs.Scalar('time64[us]')." if dtype is dt.time else ""
        )
        msg = (
            f"Field {name!r} got dtype={dtype!r}, which NumPy has no type for. A NumPy dtype, str, bytes, Decimal, date or "
            f"datetime was expected. Give one; or object, with a codec of your own that stores such cells.{clock}"
        )
        raise ArgumentError(msg)
    if found.kind == "T":  # NumPy's own text of any length, which comes as objects too
        found = np.dtype("U")
    if found.names is not None or found.subdtype is not None:
        msg = f"Field {name!r} got dtype={dtype!r}, which is made of others. Give each part a field of its own."
        raise ArgumentError(msg)
    if found.kind in "mM" and np.datetime_data(found)[0] == "generic":
        msg = f"Field {name!r} got dtype={dtype!r}, which has no unit. Give one: 'datetime64[us]'."
        raise ArgumentError(msg)
    native: np.dtype[Any] = found.newbyteorder("=")
    return native


def _checked_shape(name: str, shape: Any) -> tuple[int | None, ...]:
    try:
        found = tuple(None if size is None else int(size) for size in shape)
        # A batch has one dimension more; what its values take is compared with a limit where memory is asked for.
        fits = len(found) < MOST_DIMENSIONS and prod(size or 1 for size in found) < 2**63
        if fits and all(size is None or (size >= 0 and size == given) for size, given in zip(found, shape, strict=True)):
            return found
    except (TypeError, ValueError):
        pass
    msg = f"Field {name!r} got shape={shape!r}. Sizes from 0 on, or None, were expected. Give them: (None, 3); () for a scalar."
    raise ArgumentError(msg)


def _described(column: Field) -> str:
    """Return what a column holds, in a few words."""
    kind = {"U": "text", "S": "bytes"}.get(column.dtype.kind, str(column.dtype)) if not column.dtype.itemsize else column.dtype
    parts = [f"{kind} {column.shape}" if column.shape else f"{kind}"]
    parts += [] if column.codec is None else [repr(column.codec)]
    return "  ".join([*parts, *(["nullable"] if column.nullable else [])])


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a dataset, in order.

    Args:
        name: What the schema is called.
        fields: Its columns.

    Raises:
        ArgumentError: If two columns have one name, or something is no field.

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
            raise ArgumentError(f"Schema got the name {name!r}. A text was expected. Give one, or '' for none.")
        if not isinstance(fields, Iterable):
            msg = f"Schema {name!r} got {fields!r} as its fields. A list of Field objects was expected. Give one: "
            raise ArgumentError(msg + "[penstock.Field('id', numpy.int32)].")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "fields", tuple(fields))
        for column in self.fields:
            if not isinstance(column, Field):
                msg = f"Schema {name!r} got {column!r}. Field objects were expected: penstock.Field('id', numpy.int32)."
                raise ArgumentError(msg)
        twice = sorted(column for column, count in Counter(self.names).items() if count > 1)
        if twice:
            msg = f"Schema {name!r} has more than one field called {', '.join(twice)}. Names must differ. Rename all but one."
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
        """Return a page with a line for each column: its name, its type, how it is stored, and whether it can be null.

        Example:
            >>> print(Schema("Hello", [Field("id", np.int32), Field("tokens", np.int64, (None,), nullable=True)]))
            Schema Hello, 2 columns
              id      int32
              tokens  int64 (None,)  nullable
        """
        width = max(map(len, self.names), default=0)
        count = f"{len(self)} column{'' if len(self) == 1 else 's'}"
        lines = [f"  {column.name:<{width}}  {_described(column)}" for column in self.fields]
        return "\n".join([f"Schema {self.name}, {count}" if self.name else f"Schema, {count}", *lines])

    def __contains__(self, name: object) -> bool:
        """Return whether there is a column of a name."""
        return name in self.names

    def __iter__(self) -> Iterator[Field]:
        """Return an iterator over the columns."""
        return iter(self.fields)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.fields)

    @classmethod
    def from_arrow(cls, schema: pa.Schema, name: str = "") -> Schema:
        """Return what the columns of an Arrow schema are in NumPy.

        Example:
            >>> Schema.from_arrow(pa.schema({"x": pa.int64()}))["x"].dtype
            dtype('int64')
        """
        fields = []
        for column in schema:
            dtype, shape = numpy_type(column.type)
            fields.append(Field(column.name, dtype, shape, nullable=column.nullable))
        return cls(name, fields)
