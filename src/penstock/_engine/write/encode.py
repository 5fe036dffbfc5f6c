"""Rows, batches and Arrow tables to what is stored: checked where they are given, encoded wherever there is a thread."""

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
from penstock._engine.write.cast import fitted
from penstock._engine.write.validate import Check, Misfit, castable, holds, told
from penstock._engine.write.validate_nested import made, related
from penstock.codecs.raw import Raw
from penstock.codecs.scalar import Scalar
from penstock.codecs.tensor import Tensor
from penstock.errors import DataError, MissingExtraError, listed
from penstock.schema import CellCodec, Codec, Field, Schema
from penstock.schema.json import KEY, dump

__all__ = ["CellBuffer", "ColumnEncoder", "RowChunk", "TableEncoder", "complete", "pieces"]

ALIGNMENT = 64
LARGE = 16 << 10
"""From how many bytes on it takes longer to copy a blob than to make an array of it."""

MAX_CELL_BYTES = 2**31 - 1
"""What offsets of 32 bits can tell."""


class CellBuffer:
    """A piece of memory that arrays are copied into, one after the other; it is free again when none of them is left.

    Example:
        >>> CellBuffer(BufferPool(limit=1 << 20), 1000).copy(np.arange(3))
        array([0, 1, 2])
    """

    def __init__(self, buffer_pool: BufferPool, nbytes: int) -> None:
        """Borrow memory."""
        self._memory = buffer_pool.empty((nbytes,), np.dtype(np.uint8))
        self._used = 0

    def copy(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array of the same values that lies here, or elsewhere if there is no room."""
        start, stop = self._used, self._used + array.nbytes
        if stop > len(self._memory) or array.dtype.hasobject or not array.nbytes:
            return array.copy()
        self._used = -(-stop // ALIGNMENT) * ALIGNMENT
        here = self._memory[start:stop].view(array.dtype).reshape(array.shape)
        here[...] = array
        return here


def pieces(blobs: Sequence[bytes | None]) -> pa.ChunkedArray:
    """Return blobs as an Arrow column: large ones where they lie, a piece each, and small ones between them copied together.

    Example:
        >>> pieces([b"one", None, bytes(LARGE), b"three"]).num_chunks
        3
    """
    if not all(blob is None or isinstance(blob, bytes) for blob in blobs):
        blobs = [None if blob is None else bytes(memoryview(blob)) for blob in blobs]
    found: list[pa.Array] = []
    small: list[bytes | None] = []
    for blob in blobs:
        if blob is None or len(blob) < LARGE:
            small.append(blob)
            continue
        if small:
            found.append(_joined(small))
            small = []
        found.append(_array(1, None, struct.pack("<ii", 0, _checked(len(blob))), blob))
    if small:
        found.append(_joined(small))
    return pa.chunked_array(found, type=pa.binary())


def _joined(blobs: Sequence[bytes | None]) -> pa.Array:
    """Return blobs as one array, copied together."""
    present = [blob for blob in blobs if blob is not None]
    offsets = np.cumsum([0, *(0 if blob is None else len(blob) for blob in blobs)])
    _checked(int(offsets[-1]))
    marks = None
    if len(present) < len(blobs):
        marks = pa.py_buffer(np.packbits([blob is not None for blob in blobs], bitorder="little"))
    return _array(len(blobs), marks, offsets.astype(np.int32), b"".join(present))


def _array(rows: int, marks: pa.Buffer | None, offsets: Any, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), rows, [marks, pa.py_buffer(offsets), pa.py_buffer(data)])


def _checked(nbytes: int) -> int:
    if nbytes > MAX_CELL_BYTES:
        msg = f"{nbytes} bytes are more than Arrow holds in one array, which is {MAX_CELL_BYTES}"
        raise ValueError(msg)
    return nbytes


Values: TypeAlias = npt.NDArray[Any] | Sequence[Any] | pa.Array
"""Cells of a column that have been checked: an array of them, one by one, or as they are stored."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnEncoder:
    """One column that is written.

    Attributes:
        field: What its cells are.
        arrow: What it is in the files.
        codec: What stores the cells; None where Arrow makes them itself, of lists or structs.
        stated: Whether it stands in the schema that is stored with the table.
        check: The check of one cell.
    """

    field: Field
    arrow: pa.Field
    codec: Codec | None
    stated: bool
    check: Check

    @property
    def is_blob(self) -> bool:
        """Whether cells are stored as bytes that a codec has made."""
        return isinstance(self.codec, CellCodec)

    def takes(self, other: ColumnEncoder) -> bool:
        """Return whether cells stored in another column can be stored here without being decoded."""
        if other.field.nullable and not self.field.nullable:
            return False
        if isinstance(self.codec, CellCodec):
            return _unfixed(self.codec) == _unfixed(other.codec)
        if isinstance(self.codec, Tensor) and isinstance(other.codec, Tensor):
            return (self.field.dtype, self.field.shape) == (other.field.dtype, other.field.shape)
        if isinstance(self.codec, Scalar) and isinstance(other.codec, Scalar):
            return self.arrow.type == other.arrow.type or related(other.arrow.type, self.arrow.type)
        return self.codec is other.codec is None and self.arrow.type == other.arrow.type

    def cell(self, cell: Any) -> Any:
        """Return what is stored of a cell.

        Raises:
            Misfit: If it does not fit.
        """
        try:
            found = None if cell is None else self.check(cell)
        except Misfit as misfit:
            raise self.missing(cell) or misfit from None
        if found is None and not self.field.nullable:
            advice = f"Give a value, or allow nulls: Field({self.field.name!r}, ..., nullable=True)."
            raise Misfit("a null" if cell is None else f"{told(cell)}, a null", "a value", advice)
        return found

    def missing(self, cell: Any) -> Misfit | None:
        """Return what is told of what pandas has in place of a value; None for anything else."""
        name = self.field.name
        if not (isinstance(cell, float) and np.isnan(cell)) and type(cell).__name__ != "NAType":
            return None
        advice = f"Fill it: frame[{name!r}].fillna(value); " if not self.field.nullable else "Give None for it. "
        advice += "" if self.field.nullable else f"or allow nulls, Field({name!r}, ..., nullable=True), and give None for it."
        expected = {"U": "a str", "S": "bytes"}.get(self.field.dtype.kind, f"a value of {self.field.dtype}")
        return Misfit(f"{cell}, which pandas has where a value is missing", expected, advice.strip())

    def column(self, cells: Any) -> Values:
        """Return what is stored of the cells of a batch.

        Raises:
            Misfit: If one does not fit, with its number.
        """
        if isinstance(cells, (pa.Array, pa.ChunkedArray)):
            return fitted(self.field, self.codec, self.arrow, cells)
        if isinstance(cells, np.ma.MaskedArray):
            raise Misfit("a masked array", "an array or a list", "Give a list with None where there is no value.")
        if isinstance(cells, np.ndarray) and cells.ndim and (dense := self._dense(cells)) is not None:
            return dense
        if isinstance(cells, np.ndarray) and cells.ndim:
            self._check_dtype(cells)
        found = []
        for row, cell in enumerate(cells):
            try:
                found.append(self.cell(cell))
            except Misfit as misfit:
                misfit.row = row
                raise
        return found

    def _check_dtype(self, cells: npt.NDArray[Any]) -> None:
        """Refuse numbers of a dtype that is not the field's, whatever the first of them is."""
        wanted, given = self.field.dtype, cells.dtype
        same = given == wanted if self.field.shape else castable(given, wanted)
        if self.codec is None or same or given.kind not in "biufc" or wanted.kind not in "biufc":
            return
        changes = {"iu": ", if they are whole numbers in its range", "f": ", which rounds"}
        why = next((text for kinds, text in changes.items() if wanted.kind in kinds), "")
        advice = f"Convert it: column.astype({wanted.name!r}){why}; or change the field's dtype."
        raise Misfit(f"an array of {given}", f"one of {wanted}", advice, None)

    def _dense(self, cells: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Return an array of cells that all fit; None where they must be looked at one by one."""
        wanted, given = self.field.dtype, cells.dtype
        if self.codec is None or given.kind in "OUS" or wanted.kind in "OUS":
            return None
        if self.field.shape:
            fits = cells.ndim == len(self.field.shape) + 1 and given == wanted and (not len(cells) or self.field.fits(cells[0]))
            return cells if fits else None
        natural = self.is_blob or (isinstance(self.codec, Scalar) and self.arrow.type == Scalar().storage(self.field))
        if cells.ndim != 1 or not natural or not castable(given, wanted):
            return None
        if given.kind in "mM" and (given != wanted or np.isnat(cells).any() or not holds(self.arrow.type, cells)):
            return None
        made = cells.astype(wanted, copy=False)
        if given.kind in "iu" and wanted.kind in "fc" and not _means_same(cells, made):
            return None
        return made

    def encode(self, cells: Values) -> pa.Array | pa.ChunkedArray:
        """Return cells as they are stored."""
        if isinstance(cells, pa.Array):
            return cells
        if self.codec is None:
            return made(cells, self.arrow.type)
        if type(self.codec).encode_column is CellCodec.encode_column and self.arrow.type == pa.binary():
            encode = self.codec.encode  # type: ignore[attr-defined] # it is a CellCodec
            return pieces([None if cell is None else encode(self.field, cell) for cell in cells])
        found = self.codec.encode_column(self.field, cells)
        if found.type == self.arrow.type:
            return found
        if isinstance(self.arrow.type, pa.BaseExtensionType):  # the same tensors, told in other words
            return pa.ExtensionArray.from_storage(self.arrow.type, found.storage)
        return found.cast(self.arrow.type)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowChunk:
    """Some rows that have been checked, to be encoded together.

    Attributes:
        first: The number of the first, counted from the first row of the write.
        rows: How many.
        nbytes: About how many bytes they take.
        columns: Their cells by column, or none where `cells` has them.
        cells: Their cells by row, or none.
    """

    first: int
    rows: int
    nbytes: int
    columns: Sequence[Values] = ()
    cells: Sequence[Sequence[Any]] = ()

    def cut(self, nbytes: int, *, lent: bool = False) -> Iterator[RowChunk]:
        """Yield parts of about so many bytes; they share nothing with arrays that the caller can write to.

        Args:
            nbytes: The bytes.
            lent: Whether Arrow's arrays are such too, as those of a data frame are.
        """
        if not self.columns:  # appended one by one, until there was enough
            yield self
            return
        step = max(1, nbytes * self.rows // max(1, self.nbytes))
        for start in range(0, self.rows, step):
            rows = min(step, self.rows - start)
            columns = [_part(column, start, rows, lent=lent) for column in self.columns]
            yield RowChunk(first=self.first + start, rows=rows, nbytes=self.nbytes * rows // self.rows, columns=columns)


def _part(cells: Values, start: int, rows: int, *, lent: bool) -> Values:
    if isinstance(cells, pa.Array):
        found = cells.slice(start, rows)
        return pa.concat_arrays([found, found[:0]]) if lent else found  # two arrays are put together in memory of their own
    found = cells[start : start + rows]
    return owned(found) if isinstance(found, np.ndarray) else [owned(cell) for cell in found]


def _unfixed(codec: Codec | None) -> Codec | None:
    """Return a codec, whether it says or not that its cells are stored with their length."""
    return replace(codec, fixed=False) if isinstance(codec, Raw) else codec


def _means_same(numbers: npt.NDArray[Any], made: npt.NDArray[Any]) -> bool:
    """Return whether floats are the whole numbers that they were made of; those above so many bits may have been rounded."""
    exact = 2 ** (np.finfo(made.dtype).nmant + 1)
    large = (numbers > exact) | (numbers < -exact)
    return all(int(one) == int(other) for one, other in zip(made.real[large], numbers[large], strict=True))


def owned(cell: Any) -> Any:
    """Return a cell that the caller cannot change: a copy of an array that is not read-only."""
    return cell.copy() if isinstance(cell, np.ndarray) and cell.flags.writeable else cell


def _bytes(cells: Values) -> int:
    if isinstance(cells, (np.ndarray, pa.Array)):
        return int(cells.nbytes)
    return sum(map(size, cells))


def size(cell: Any) -> int:
    """Return about how many bytes a cell takes."""
    if isinstance(cell, np.ndarray):
        return cell.nbytes
    return len(cell) if isinstance(cell, (str, bytes, list)) else 8


@dataclass(frozen=True, eq=False)
class TableEncoder:
    """The columns of a table that is written, in order.

    Example:
        >>> from penstock._engine.write.schema import of_schema
        >>> columns = of_schema(Schema("Hello", [Field("id", np.int32), Field("x", np.float32, (2,))]))
        >>> batch = columns.batch({"id": [1, 2], "x": np.ones((2, 2), np.float32)}, first=0)
        >>> columns.encode(batch).num_rows
        2
    """

    columns: tuple[ColumnEncoder, ...]
    schema: Schema
    metadata: Mapping[bytes, bytes]
    optional: frozenset[str] = frozenset()
    """The columns that rows and batches may lack; they are null then."""

    @cached_property
    def arrow(self) -> pa.Schema:
        """What the table is in Arrow, with the schema that is stored with it."""
        return pa.schema([column.arrow for column in self.columns], metadata=dict(self.metadata) or None)

    def alike(self, others: TableEncoder | None) -> bool:
        """Return whether cells that are stored in others can be taken as they are stored there."""
        if others is None or set(self.arrow.names) != set(others.arrow.names):
            return False
        return all(column.takes(others.named(column.field.name)) for column in self.columns)

    def roomy(self) -> TableEncoder:
        """Return the columns for rows that come from many places, whose categories may be more than those of the first."""
        columns = tuple(replace(one, arrow=with_wide_indices(one.arrow)) for one in self.columns)
        return replace(self, columns=columns)

    @cached_property
    def _checks(self) -> list[tuple[str, Check, bool]]:
        return [(column.field.name, column.check, column.field.nullable) for column in self.columns]

    @cached_property
    def _names(self) -> dict[str, None]:
        return {column.field.name: None for column in self.columns}

    def row(self, row: Mapping[str, Any], number: int) -> list[Any]:
        """Return the cells of a row, checked, in the order of the columns.

        Raises:
            DataError: If one does not fit.
        """
        if row.keys() != self._names.keys():
            row = self._complete(row, number)
        found, name = [], ""
        try:
            for name, check, nullable in self._checks:
                cell = row[name]
                if cell is not None:
                    cell = check(cell)
                if cell is None and not nullable:
                    self.named(name).cell(row[name])
                found.append(cell)
        except Misfit as misfit:
            why = self.named(name).missing(row[name]) or misfit
            raise DataError(f"Row {number}, field {name!r}: {why}") from None
        return found

    def batch(self, batch: Mapping[str, Any], first: int) -> RowChunk:
        """Return the rows of a batch, checked; whatever is wrong with one, none is taken.

        Raises:
            DataError: If one does not fit, or columns have not one length.
        """
        batch = self._complete(batch, first)
        lengths = {name: len(cells) for name, cells in batch.items() if cells is not None}
        if len(set(lengths.values())) > 1:
            told_lengths = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            msg = f"The batch that begins with row {first} has columns of different lengths: {told_lengths}. One was expected. "
            raise DataError(msg + "Rows come first in every column; give them alike, or append rows one by one.")
        rows = next(iter(lengths.values()), 0)
        found: list[Values] = []
        for column in self.columns:
            cells = batch[column.field.name]
            try:
                if cells is None:
                    column.cell(None)
                found.append(pa.nulls(rows, column.arrow.type) if cells is None else column.column(cells))
            except Misfit as misfit:
                where = f"Row {first + misfit.row}" if misfit.row is not None else f"The batch that begins with row {first}"
                raise DataError(f"{where}, field {column.field.name!r}: {misfit}") from None
        return RowChunk(first=first, rows=rows, nbytes=sum(map(_bytes, found)), columns=found)

    def named(self, name: str) -> ColumnEncoder:
        """Return one column."""
        return next(column for column in self.columns if column.field.name == name)

    def encode(self, chunk: RowChunk) -> pa.Table:
        """Return rows as they are stored.

        Raises:
            DataError: If a codec cannot encode a cell.
        """
        columns = chunk.columns or list(zip(*chunk.cells, strict=True))
        arrays = []
        for column, cells in zip(self.columns, columns, strict=True):
            try:
                arrays.append(column.encode(cells))
            except MissingExtraError:
                raise  # nothing is wrong with the cell
            except Exception as error:  # noqa: BLE001 - a codec may be anyone's
                _tell(column, cells, chunk.first, error)
        return pa.Table.from_arrays(arrays, schema=self.arrow)

    def stating(self, names: Sequence[str]) -> TableEncoder:
        """Return the columns with some of them in the stored schema: those that no file will tell the type of."""
        if all(self.named(name).stated for name in names):
            return self
        columns = tuple(replace(each, stated=each.stated or each.field.name in names) for each in self.columns)
        schema = Schema(self.schema.name, [column.field for column in columns if column.stated])
        return replace(self, columns=columns, schema=schema, metadata={**self.metadata, KEY: dump(schema).encode()})

    def nullable(self) -> TableEncoder:
        """Return the columns with every nullable one optional in rows and batches."""
        return replace(self, optional=frozenset(column.field.name for column in self.columns if column.field.nullable))

    def _complete(self, given: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return what was given with None for what may be missing, and refuse what nobody knows."""
        fillable = {column.field.name for column in self.columns if column.field.nullable}
        return complete(given, number, self._names, self.optional, fillable)


def complete(
    given: Mapping[str, Any], number: int, names: Collection[str], optional: Collection[str], fillable: Collection[str]
) -> dict[str, Any]:
    """Return a row or a batch with None for columns that may be missing.

    Args:
        given: The row or batch.
        number: The number of its first row.
        names: The columns of the table.
        optional: Those that may be missing.
        fillable: Those that could be, if the user asked for it.

    Raises:
        DataError: If it has other columns, or lacks one.

    Example:
        >>> complete({"a": 1}, 0, ["a", "b"], ["b"], ["b"])
        {'a': 1, 'b': None}
    """
    if not isinstance(given, Mapping):
        msg = f"Row {number} is {told(given)}. A mapping of field names to cells was expected. Give one: dict(row)."
        raise DataError(msg)
    unknown = [str(name) for name in given if name not in names]
    missing = [name for name in names if name not in given and name not in optional]
    if not unknown and not missing:
        return {name: given.get(name) for name in names}
    parts = []
    for name in unknown:
        near = difflib.get_close_matches(name, missing or names, n=1)
        parts.append(f"{name!r} is not in the schema" + (f" (did you mean {near[0]!r}?)" if near else ""))
    parts += [f"{name!r} is missing" for name in missing]
    advice = []
    if unknown:
        advice.append("Leave it out, or write the table anew with a schema that has it.")
    if missing and all(name in fillable for name in missing):
        advice.append('Give every column, or write nulls in its place: penstock.write(..., missing="null").')
    elif missing:
        advice.append("Give every field, or write the table anew with a schema in which it is nullable.")
    raise DataError(f"Row {number}: {'; '.join(parts)}. Fields: {listed(names)}. {' '.join(advice)}")


def _tell(column: ColumnEncoder, cells: Values, first: int, error: Exception) -> NoReturn:
    """Raise what went wrong with a column, with the row where that can be found."""
    row, name = None, column.field.name
    if isinstance(column.codec, CellCodec) and not isinstance(cells, pa.Array):
        for number, cell in enumerate(cells):
            try:
                if cell is not None:
                    column.codec.encode(column.field, cell)
            except Exception as found:  # noqa: BLE001 - a codec may be anyone's
                row, error = number, found
                break
    where = f"Row {first + row}" if row is not None else f"One of rows {first} to {first + len(cells) - 1}"
    problem = str(error).rstrip(".")
    msg = f"{where}, field {name!r}: {column.codec!r} cannot encode it: {problem}. Nothing was written. Check the cell, "
    raise DataError(msg + "or use another codec.") from error
