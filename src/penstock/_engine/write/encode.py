"""Checks and encodes rows, batches and Arrow tables: checked by the thread that gives them, encoded on any thread."""

from __future__ import annotations

import difflib
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._engine.decode.concat import with_wide_indices
from penstock._engine.runtime.memory import BufferPool
from penstock._engine.write.cast import cast_column
from penstock._engine.write.validate import Check, InvalidCellError, castable, describe, fits_storage, is_compatible, make_array
from penstock.codecs.raw import Raw
from penstock.codecs.scalar import Scalar
from penstock.codecs.tensor import Tensor
from penstock.errors import DataError, MissingExtraError, listed
from penstock.schema import CellCodec, Codec, Field, Schema
from penstock.schema.json import KEY, dump

ALIGNMENT = 64
LARGE = 16 << 10
"""The size in bytes from which copying a blob costs more than an array of its own."""

MAX_ARRAY_BYTES = 2**31 - 1
"""The limit of 32-bit offsets."""


class CellBuffer:
    """Memory that arrays are copied into, one after the other; the pool reuses it when none of them is left.

    Example:
        >>> CellBuffer(BufferPool(limit=1 << 20), 1000).copy(np.arange(3))
        array([0, 1, 2])
    """

    def __init__(self, buffer_pool: BufferPool, nbytes: int) -> None:
        """Take memory from the pool."""
        self._memory = buffer_pool.empty((nbytes,), np.dtype(np.uint8))
        self._used = 0

    def copy(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy of an array, in this memory if there is enough of it."""
        start, stop = self._used, self._used + array.nbytes
        if stop > len(self._memory) or array.dtype.hasobject or not array.nbytes:
            return array.copy()
        self._used = -(-stop // ALIGNMENT) * ALIGNMENT
        result = self._memory[start:stop].view(array.dtype).reshape(array.shape)
        result[...] = array
        return result


def pieces(blobs: Sequence[bytes | None]) -> pa.ChunkedArray:
    """Return blobs as an Arrow column: each large one as a chunk without a copy, small ones between them joined.

    Example:
        >>> pieces([b"one", None, bytes(LARGE), b"three"]).num_chunks
        3
    """
    if not all(blob is None or isinstance(blob, bytes) for blob in blobs):
        blobs = [None if blob is None else bytes(memoryview(blob)) for blob in blobs]
    chunks: list[pa.Array] = []
    small: list[bytes | None] = []
    for blob in blobs:
        if blob is None or len(blob) < LARGE:
            small.append(blob)
            continue
        if small:
            chunks.append(_join_blobs(small))
            small = []
        _check_size(len(blob))
        chunks.append(_binary_array(1, None, struct.pack("<ii", 0, len(blob)), blob))
    if small:
        chunks.append(_join_blobs(small))
    return pa.chunked_array(chunks, type=pa.binary())


def _join_blobs(blobs: Sequence[bytes | None]) -> pa.Array:
    present = [blob for blob in blobs if blob is not None]
    offsets = np.cumsum([0, *(0 if blob is None else len(blob) for blob in blobs)])
    _check_size(int(offsets[-1]))
    validity = None
    if len(present) < len(blobs):
        validity = pa.py_buffer(np.packbits([blob is not None for blob in blobs], bitorder="little"))
    return _binary_array(len(blobs), validity, offsets.astype(np.int32), b"".join(present))


def _binary_array(rows: int, validity: pa.Buffer | None, offsets: Any, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), rows, [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _check_size(nbytes: int) -> None:
    if nbytes > MAX_ARRAY_BYTES:
        raise ValueError(f"{nbytes} bytes are more than the {MAX_ARRAY_BYTES} that an Arrow array holds")


Values: TypeAlias = npt.NDArray[Any] | Sequence[Any] | pa.Array
"""Checked cells of a column: an array of them, a list of them, or the array that is stored."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnEncoder:
    """One column that is written, and how."""

    field: Field
    arrow: pa.Field
    codec: Codec | None
    """None for lists and structs, which Arrow itself makes of cells."""
    in_schema: bool
    """Whether the field is in the schema that is stored with the table."""
    check: Check

    @property
    def is_blob(self) -> bool:
        """Whether cells are stored as bytes of a codec."""
        return isinstance(self.codec, CellCodec)

    def can_copy(self, other: ColumnEncoder) -> bool:
        """Return whether stored cells of another column can be stored here without being decoded."""
        if other.field.nullable and not self.field.nullable:
            return False
        if isinstance(self.codec, CellCodec):
            return _without_fixed(self.codec) == _without_fixed(other.codec)
        if isinstance(self.codec, Tensor) and isinstance(other.codec, Tensor):
            return (self.field.dtype, self.field.shape) == (other.field.dtype, other.field.shape)
        if isinstance(self.codec, Scalar) and isinstance(other.codec, Scalar):
            return self.arrow.type == other.arrow.type or is_compatible(other.arrow.type, self.arrow.type)
        return self.codec is other.codec is None and self.arrow.type == other.arrow.type

    def check_cell(self, cell: Any) -> Any:
        """Return the value to store for a cell, or raise `InvalidCellError`."""
        try:
            value = None if cell is None else self.check(cell)
        except InvalidCellError as error:
            raise self.pandas_null_error(cell) or error from None
        if value is None and not self.field.nullable:
            advice = f"Give a value, or allow nulls: Field({self.field.name!r}, ..., nullable=True)."
            raise InvalidCellError("a null" if cell is None else f"{describe(cell)}, a null", "a value", advice)
        return value

    def pandas_null_error(self, cell: Any) -> InvalidCellError | None:
        """Return the error for a NaN or NA that pandas has in place of a missing value; None for other cells."""
        name = self.field.name
        if not (isinstance(cell, float) and np.isnan(cell)) and type(cell).__name__ != "NAType":
            return None
        advice = "Give None for it."
        if not self.field.nullable:
            advice = f"Fill it: frame[{name!r}].fillna(value); or allow nulls, Field({name!r}, ..., nullable=True), and give "
            advice += "None for it."
        expected = {"U": "a str", "S": "bytes"}.get(self.field.dtype.kind, f"a value of {self.field.dtype}")
        return InvalidCellError(f"{cell}, which pandas has where a value is missing", expected, advice)

    def check_column(self, cells: Any) -> Values:
        """Return the values to store for the cells of a batch, or raise `InvalidCellError` with the row."""
        if isinstance(cells, (pa.Array, pa.ChunkedArray)):
            return cast_column(self.field, self.codec, self.arrow, cells)
        if isinstance(cells, np.ma.MaskedArray):
            expected = "an array or a list"
            raise InvalidCellError("a masked array", expected, "Give a list with None where there is no value.")
        if isinstance(cells, np.ndarray) and cells.ndim:
            dense = self._dense(cells)
            if dense is not None:
                return dense
            self._check_dtype(cells)
        values = []
        for row, cell in enumerate(cells):
            try:
                values.append(self.check_cell(cell))
            except InvalidCellError as error:
                error.row = row
                raise
        return values

    def _check_dtype(self, cells: npt.NDArray[Any]) -> None:
        """Refuse numbers of another dtype, even if each of them would fit."""
        wanted, given = self.field.dtype, cells.dtype
        same = given == wanted if self.field.shape else castable(given, wanted)
        if self.codec is None or same or given.kind not in "biufc" or wanted.kind not in "biufc":
            return
        effects = {"i": ", if they are whole numbers in its range", "f": ", which rounds"}
        effect = effects.get(wanted.kind.replace("u", "i"), "")
        advice = f"Convert it: column.astype({wanted.name!r}){effect}; or change the field's dtype."
        raise InvalidCellError(f"an array of {given}", f"one of {wanted}", advice, None)

    def _dense(self, cells: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Return an array whose cells all fit; None if each must be checked."""
        wanted, given = self.field.dtype, cells.dtype
        if self.codec is None or given.kind in "OUS" or wanted.kind in "OUS":
            return None
        if self.field.shape:
            fits = cells.ndim == len(self.field.shape) + 1 and given == wanted and (not len(cells) or self.field.fits(cells[0]))
            return cells if fits else None
        natural = self.is_blob or (isinstance(self.codec, Scalar) and self.arrow.type == Scalar().storage(self.field))
        if cells.ndim != 1 or not natural or not castable(given, wanted):
            return None
        if given.kind in "mM" and (given != wanted or np.isnat(cells).any() or not fits_storage(self.arrow.type, cells)):
            return None
        converted = cells.astype(wanted, copy=False)
        if given.kind in "iu" and wanted.kind in "fc" and not _is_exact(cells, converted):
            return None
        return converted

    def encode(self, cells: Values) -> pa.Array | pa.ChunkedArray:
        """Return checked cells as they are stored."""
        if isinstance(cells, pa.Array):
            return cells
        if self.codec is None:
            return make_array(cells, self.arrow.type)
        if type(self.codec).encode_column is CellCodec.encode_column and self.arrow.type == pa.binary():
            encode = self.codec.encode  # type: ignore[attr-defined] # it is a CellCodec
            return pieces([None if cell is None else encode(self.field, cell) for cell in cells])
        array = self.codec.encode_column(self.field, cells)
        if array.type == self.arrow.type:
            return array
        if isinstance(self.arrow.type, pa.BaseExtensionType):  # a tensor type with other metadata
            return pa.ExtensionArray.from_storage(self.arrow.type, array.storage)
        return array.cast(self.arrow.type)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowChunk:
    """Checked rows that are encoded together."""

    first: int
    """The number of the first row in the write."""
    num_rows: int
    nbytes: int
    columns: Sequence[Values]

    def split(self, nbytes: int, *, shared: bool = False) -> Iterator[RowChunk]:
        """Yield parts of about a size, copied where the caller can change the arrays; Arrow arrays only if `shared`."""
        step = max(1, nbytes * self.num_rows // max(1, self.nbytes))
        for start in range(0, self.num_rows, step):
            rows = min(step, self.num_rows - start)
            columns = [_slice_cells(column, start, rows, shared=shared) for column in self.columns]
            part_bytes = self.nbytes * rows // self.num_rows
            yield RowChunk(first=self.first + start, num_rows=rows, nbytes=part_bytes, columns=columns)


def _slice_cells(cells: Values, start: int, rows: int, *, shared: bool) -> Values:
    part = cells[start : start + rows]
    if isinstance(part, pa.Array):
        return pa.concat_arrays([part, part[:0]]) if shared else part  # concatenating two arrays copies them
    return copy_if_writeable(part) if isinstance(part, np.ndarray) else [copy_if_writeable(cell) for cell in part]


def _without_fixed(codec: Codec | None) -> Codec | None:
    """Return a codec as if its cells were stored with their length."""
    return replace(codec, fixed=False) if isinstance(codec, Raw) else codec


def _is_exact(integers: npt.NDArray[Any], floats: npt.NDArray[Any]) -> bool:
    """Return whether floats equal the integers that they were converted from; only large ones can be rounded."""
    limit = 2 ** (np.finfo(floats.dtype).nmant + 1)
    large = (integers > limit) | (integers < -limit)
    return all(int(one) == int(other) for one, other in zip(floats.real[large], integers[large], strict=True))


def copy_if_writeable(cell: Any) -> Any:
    """Return a cell that the caller cannot change: a copy of an array that is not read-only."""
    return cell.copy() if isinstance(cell, np.ndarray) and cell.flags.writeable else cell


def data_size(cell: Any) -> int:
    """Return the approximate size of a cell or an array in bytes."""
    if isinstance(cell, (np.ndarray, pa.Array)):
        return int(cell.nbytes)
    return len(cell) if isinstance(cell, (str, bytes, list)) else 8


@dataclass(frozen=True, eq=False)
class TableEncoder:
    """The columns of a table that is written, in order, and the schema and metadata that are stored with it.

    Example:
        >>> from penstock._engine.write.schema import encoder_from_schema
        >>> encoder = encoder_from_schema(Schema("Hello", [Field("id", np.int32), Field("x", np.float32, (2,))]))
        >>> batch = encoder.check_batch({"id": [1, 2], "x": np.ones((2, 2), np.float32)}, first=0)
        >>> encoder.encode(batch).num_rows
        2
    """

    columns: tuple[ColumnEncoder, ...]
    schema: Schema
    metadata: Mapping[bytes, bytes]
    optional: frozenset[str] = frozenset()
    """Columns that rows and batches may lack; they are null then."""

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the table, with its metadata."""
        return pa.schema([column.arrow for column in self.columns], metadata=dict(self.metadata) or None)

    @cached_property
    def _by_name(self) -> dict[str, ColumnEncoder]:
        return {column.field.name: column for column in self.columns}

    @cached_property
    def _checks(self) -> list[tuple[str, Check, bool]]:
        return [(column.field.name, column.check, column.field.nullable) for column in self.columns]

    def named(self, name: str) -> ColumnEncoder:
        """Return one column."""
        return self._by_name[name]

    def can_copy(self, other: TableEncoder | None) -> bool:
        """Return whether the stored cells of another table can be stored here without being decoded."""
        if other is None or set(self.arrow.names) != set(other.arrow.names):
            return False
        return all(column.can_copy(other.named(column.field.name)) for column in self.columns)

    def check_row(self, row: Mapping[str, Any], number: int) -> list[Any]:
        """Return the checked cells of a row in the order of the columns, or raise `DataError`."""
        if row.keys() != self._by_name.keys():
            row = self._fill_missing(row, number)
        cells, name = [], ""
        try:
            for name, check, nullable in self._checks:
                cell = row[name]
                if cell is not None:
                    cell = check(cell)
                if cell is None and not nullable:
                    self.named(name).check_cell(row[name])
                cells.append(cell)
        except InvalidCellError as error:
            why = self.named(name).pandas_null_error(row[name]) or error
            raise DataError(f"Row {number}, field {name!r}: {why}") from None
        return cells

    def check_batch(self, batch: Mapping[str, Any], first: int) -> RowChunk:
        """Return the checked rows of a batch, or raise `DataError` if any cell does not fit."""
        batch = self._fill_missing(batch, first)
        lengths = {name: len(cells) for name, cells in batch.items() if cells is not None}
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise DataError(
                f"The batch that begins with row {first} has columns of different lengths: {sizes}; expected one length. Give "
                "columns of the same number of rows, or append rows one by one."
            )
        rows = next(iter(lengths.values()), 0)
        columns: list[Values] = []
        for name, column in self._by_name.items():
            cells = batch[name]
            try:
                if cells is None:
                    column.check_cell(None)
                columns.append(pa.nulls(rows, column.arrow.type) if cells is None else column.check_column(cells))
            except InvalidCellError as error:
                where = f"Row {first + error.row}" if error.row is not None else f"The batch that begins with row {first}"
                raise DataError(f"{where}, field {name!r}: {error}") from None
        nbytes = sum(sum(map(data_size, each)) if isinstance(each, list) else data_size(each) for each in columns)
        return RowChunk(first=first, num_rows=rows, nbytes=nbytes, columns=columns)

    def encode(self, chunk: RowChunk) -> pa.Table:
        """Return rows as they are stored, or raise `DataError` if a codec cannot encode a cell."""
        arrays = []
        for column, cells in zip(self.columns, chunk.columns, strict=True):
            try:
                arrays.append(column.encode(cells))
            except MissingExtraError:
                raise  # nothing is wrong with the cell
            except Exception as error:  # noqa: BLE001 - users write codecs
                _raise_encode_error(column, cells, chunk.first, error)
        return pa.Table.from_arrays(arrays, schema=self.arrow)

    def with_wide_indices(self) -> TableEncoder:
        """Return an encoder whose categories may outnumber those of the first rows."""
        return replace(self, columns=tuple(replace(each, arrow=with_wide_indices(each.arrow)) for each in self.columns))

    def with_schema_fields(self, names: Sequence[str]) -> TableEncoder:
        """Return an encoder that stores the fields of these columns in the schema: no file has their types."""
        if all(self.named(name).in_schema for name in names):
            return self
        columns = tuple(replace(each, in_schema=each.in_schema or each.field.name in names) for each in self.columns)
        schema = Schema(self.schema.name, [column.field for column in columns if column.in_schema])
        return replace(self, columns=columns, schema=schema, metadata={**self.metadata, KEY: dump(schema).encode()})

    def with_optional_nulls(self) -> TableEncoder:
        """Return an encoder whose nullable columns may be missing in rows and batches."""
        return replace(self, optional=self._nullable)

    @cached_property
    def _nullable(self) -> frozenset[str]:
        return frozenset(column.field.name for column in self.columns if column.field.nullable)

    def _fill_missing(self, given: Mapping[str, Any], number: int) -> dict[str, Any]:
        return fill_missing(given, number, self._by_name, self.optional, self._nullable)


def fill_missing(
    given: Mapping[str, Any], number: int, names: Collection[str], optional: Collection[str], nullable: Collection[str]
) -> dict[str, Any]:
    """Return a row or a batch with None for optional columns that it lacks, or raise `DataError`.

    `number` is that of its first row, and the user can make the `nullable` columns optional.

    Example:
        >>> fill_missing({"a": 1}, 0, ["a", "b"], ["b"], ["b"])
        {'a': 1, 'b': None}
    """
    if not isinstance(given, Mapping):
        raise DataError(f"Row {number} is {describe(given)}; expected a mapping of field names to cells. Give one: dict(row).")
    unknown = [str(name) for name in given if name not in names]
    missing = [name for name in names if name not in given and name not in optional]
    if not unknown and not missing:
        return {name: given.get(name) for name in names}
    problems = []
    for name in unknown:
        near = difflib.get_close_matches(name, missing or names, n=1)
        problems.append(f"{name!r} is not in the schema" + (f" (did you mean {near[0]!r}?)" if near else ""))
    problems += [f"{name!r} is missing" for name in missing]
    advice = []
    if unknown:
        advice.append("Leave it out, or write the table again with a schema that has it.")
    if missing and all(name in nullable for name in missing):
        advice.append('Give every column, or write nulls in its place: penstock.write(..., missing="null").')
    elif missing:
        advice.append("Give every field, or write the table again with a schema in which it is nullable.")
    raise DataError(f"Row {number}: {'; '.join(problems)}. Fields: {listed(names)}. {' '.join(advice)}")


def _raise_encode_error(column: ColumnEncoder, cells: Values, first: int, error: Exception) -> NoReturn:
    """Raise the error of a codec, with the row if encoding cell by cell finds it."""
    row = None
    if isinstance(column.codec, CellCodec) and not isinstance(cells, pa.Array):
        for number, cell in enumerate(cells):
            try:
                if cell is not None:
                    column.codec.encode(column.field, cell)
            except Exception as cell_error:  # noqa: BLE001 - users write codecs
                row, error = number, cell_error
                break
    where = f"Row {first + row}" if row is not None else f"One of rows {first} to {first + len(cells) - 1}"
    raise DataError(
        f"{where}, field {column.field.name!r}: {column.codec!r} cannot encode it: {str(error).rstrip('.')}. Nothing was "
        "written. Check the cell, or use another codec."
    ) from error
