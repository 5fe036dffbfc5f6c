"""Every Arrow type is decoded to its documented NumPy type, with and without nulls, sliced and chunked."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.decode.arrow import CellError, decode
from penstock._engine.query.query import ColumnDecoding
from penstock.errors import ArgumentError
from penstock.policies import AsObjects, DefaultNulls, Fill, Mask, Nulls, Offsets, Pad, Ragged, RaiseIfRagged, RaiseOnNull

DAY = 24 * 3600
ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
VARIABLE = pa.struct({"data": pa.list_(pa.float32()), "shape": pa.list_(pa.int32(), 2)})


@dataclass(frozen=True)
class Case:
    """An Arrow type, the values of an array, and the cells that decoding must return."""

    kind: Any
    given: Sequence[Any]
    cells: Sequence[Any]
    dtype: str = "object"
    stored: Any = None

    @property
    def nested(self) -> bool:
        """Whether all cells form one array, because they have a fixed shape."""
        return isinstance(self.kind, pa.FixedSizeListType | pa.FixedShapeTensorType)

    @property
    def ragged(self) -> bool:
        """Whether a cell is a list of any length."""
        return isinstance(self.kind, pa.ListType | pa.LargeListType | pa.ListViewType | pa.LargeListViewType)

    def array(self, rows: Sequence[int | None]) -> Any:
        """Return an Arrow array of the cells with these numbers; None is a null."""
        values = [None if row is None else self.given[row] for row in rows]
        if isinstance(self.kind, pa.RunEndEncodedType):
            return pc.run_end_encode(pa.array(values, self.kind.value_type))
        if isinstance(self.kind, pa.BaseExtensionType):
            return self.kind.wrap_array(pa.array(values, self.kind.storage_type))
        return pa.array(values, self.stored or self.kind).cast(self.kind)

    def expected(self, rows: Sequence[int | None], null: Any) -> npt.NDArray[Any]:
        """Return the cells with these numbers as an array, and `null` for None."""
        shape = np.shape(self.cells[0]) if self.nested else ()
        wanted = np.empty((len(rows), *shape), self.dtype)
        for place, row in enumerate(rows):
            cell = null if row is None else self.cells[row]
            wanted[place] = np.array(cell, self.dtype) if self.dtype != "object" or (self.nested and row is not None) else cell
        return wanted


def variable_tensor(metadata: str = "{}") -> Any:
    """Return the type of tensors of different shapes, which pyarrow makes only from a field's metadata."""
    field_metadata = {"ARROW:extension:name": "arrow.variable_shape_tensor", "ARROW:extension:metadata": metadata}
    return pa.ipc.read_schema(pa.schema([pa.field("x", VARIABLE, metadata=field_metadata)]).serialize()).field("x").type


def of(*cells: Any, dtype: str) -> list[Any]:
    """Return cells as arrays of a dtype."""
    return [np.array(cell, dtype) for cell in cells]


CELLS: list[Case] = [
    Case(pa.bool_(), [True, False, True], [True, False, True], "bool"),
    *(Case(kind, ends := [np.iinfo(str(kind)).min, 7, np.iinfo(str(kind)).max], ends, str(kind)) for kind in INTEGERS),
    Case(pa.float16(), [np.float16(0.5), np.float16(65504), np.float16(-1)], [0.5, 65504, -1], "float16"),
    Case(pa.float32(), [0.5, float("nan"), float("-inf")], [0.5, float("nan"), float("-inf")], "float32"),
    Case(pa.float64(), [0.1, -0.0, 1e308], [0.1, -0.0, 1e308], "float64"),
    Case(pa.date32(), [0, -1, 3_000_000], [0, -1, 3_000_000], "datetime64[D]", pa.int32()),
    Case(pa.date64(), [0, -DAY * 1000, 8**15], [0, -DAY * 1000, 8**15], "datetime64[ms]", pa.int64()),
    *(Case(pa.time32(unit), [0, 1, DAY - 1], [0, 1, DAY - 1], f"timedelta64[{unit}]", pa.int32()) for unit in ("s", "ms")),
    *(Case(pa.time64(unit), t := [0, 1, DAY * 10**6 - 1], t, f"m8[{unit}]", pa.int64()) for unit in ("us", "ns")),
    *(Case(pa.timestamp(unit), far := [0, -1, 2**62], far, f"M8[{unit}]", pa.int64()) for unit in ("s", "ms", "us", "ns")),
    Case(pa.timestamp("us", "Asia/Tokyo"), [0, -(2**62), 5], [0, -(2**62), 5], "M8[us]", pa.int64()),
    *(Case(pa.duration(unit), far := [0, -1, 2**62], far, f"m8[{unit}]", pa.int64()) for unit in ("s", "ms", "us", "ns")),
    *(Case(kind, text := ["", "a", "ünï" * 9], text) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *(Case(kind, raw := [b"", b"\0", b"\xff" * 20], raw) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    Case(pa.binary(2), [b"ab", b"\0\0", b"\xff\xff"], [b"ab", b"\0\0", b"\xff\xff"]),
    *(
        Case(kind, sums := [Decimal("0.01"), Decimal("-12345.60"), Decimal("0.00")], sums)
        for kind in (pa.decimal32(7, 2), pa.decimal64(10, 2), pa.decimal128(20, 2), pa.decimal256(50, 2))
    ),
    Case(pa.struct({"a": pa.int64(), "b": pa.string()}), d := [{"a": 2**62, "b": None}, {"a": None, "b": "x"}] * 2, d),
    Case(pa.map_(pa.string(), pa.int32()), m := [[("k", 1), ("k", None)], [], [("j", 3)]], m),
    Case(pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"], ["a", "b", "a"]),
    Case(pa.dictionary(pa.int16(), pa.uint64()), [2**64 - 1, 0, 1], [2**64 - 1, 0, 1], "uint64"),
    Case(pa.run_end_encoded(pa.int32(), pa.int64()), [5, 5, -1], [5, 5, -1], "int64"),
    Case(pa.run_end_encoded(pa.int32(), pa.string()), ["a", "a", "b"], ["a", "a", "b"]),
    *(
        Case(kind(pa.int16()), [[1, 2], [], [3]], of([1, 2], [], [3], dtype="int16"))
        for kind in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)
    ),
    Case(pa.list_(pa.float32()), [[1, 0], [], [2.5]], of([1, 0], [], [2.5], dtype="float32")),
    Case(pa.list_(pa.string()), [["a", "c"], [], ["b"]], of(["a", "c"], [], ["b"], dtype="object")),
    Case(pa.list_(pa.list_(pa.int8(), 2)), [[[1, 2]], [], [[3, 4], [5, 6]]], [
        np.array([[1, 2]], "int8"), np.zeros((0, 2), "int8"), np.array([[3, 4], [5, 6]], "int8"),
    ]),
    Case(pa.list_(pa.int32(), 3), [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 2, 3], [4, 5, 6], [7, 8, 9]], "int32"),
    Case(pa.list_(pa.list_(pa.bool_(), 1), 2), b := [[[True], [False]], [[False]] * 2, [[True]] * 2], b, "bool"),
    Case(pa.list_(pa.string(), 2), s := [["a", "b"], ["c", "d"], ["e", "f"]], s),
    Case(pa.list_(pa.timestamp("ns"), 1), [[0], [-1], [2**62]], [[0], [-1], [2**62]], "M8[ns]"),
    Case(pa.fixed_shape_tensor(pa.int32(), [2, 2]), [[1, 2, 3, 4]] * 3, [[[1, 2], [3, 4]]] * 3, "int32"),
    Case(pa.fixed_shape_tensor(pa.int32(), [2, 2], permutation=[1, 0]), [[1, 2, 3, 4]] * 3, [[[1, 3], [2, 4]]] * 3, "int32"),
    Case(variable_tensor(), [{"data": [1, 2], "shape": [2, 1]}] * 3, of(*[[[1], [2]]] * 3, dtype="float32")),
    Case(variable_tensor('{"permutation": [1, 0]}'), [{"data": [1, 2], "shape": [2, 1]}] * 3, of(*[[[1, 2]]] * 3, dtype="f4")),
    Case(pa.uuid(), [ID.bytes] * 3, [ID] * 3),
    Case(pa.json_(), ["{}", "1", ""], ["{}", "1", ""]),
    Case(pa.bool8(), [1, 0, -3], [True, False, True], "bool"),
    Case(pa.opaque(pa.int16(), "x", "y"), [1, 2, 3], [1, 2, 3], "int16"),
    Case(pa.null(), [None] * 3, [None] * 3),
]  # fmt: skip


def equal(found: Any, wanted: Any) -> bool:
    """Return whether two cells have the same value, type and dtype. NaN equals NaN, and NaT equals NaT."""
    if isinstance(wanted, np.ndarray):
        same = isinstance(found, np.ndarray) and found.dtype == wanted.dtype and found.shape == wanted.shape
        return same and all(equal(one, other) for one, other in zip(found.ravel(), wanted.ravel(), strict=True))
    if isinstance(wanted, float | np.floating | np.datetime64 | np.timedelta64):
        return bool(found == wanted or (found != found and wanted != wanted))  # noqa: PLR0124 - NaN and NaT
    return type(found) is type(wanted) and bool(found == wanted)


def arranged(array: Any, layout: str) -> Any:
    """Return the same cells in another layout in memory."""
    rows = len(array)
    if layout == "whole":
        return array
    if layout == "no chunk" and not rows:
        return pa.chunked_array([], array.type)
    around = pa.concat_arrays([array] * 3)
    if layout == "sliced":
        return around.slice(rows, rows)
    cuts = [0, min(1, rows), min(1, rows), rows]
    return pa.chunked_array([around.slice(rows + start, stop - start) for start, stop in pairwise(cuts)], array.type)


@pytest.mark.parametrize("layout", ["whole", "sliced", "chunked", "no chunk"])
@pytest.mark.parametrize(
    "rows", [[0, 1, 2] * 4, [2, None, 0] * 4, [None] * 9, []], ids=["full", "some null", "all null", "empty"]
)
@pytest.mark.parametrize("case", CELLS, ids=lambda case: str(case.kind))
def test_every_type_is_decoded_as_documented(case: Case, rows: list[int | None], layout: str) -> None:
    """Each type has its dtype and values. A null is NaN, NaT or None, or raises with its row."""
    array = arranged(case.array(rows), layout)
    nulls = [row is None or case.kind == pa.null() for row in rows]
    kind = np.dtype(case.dtype).kind
    column = ColumnDecoding(name="x")

    if any(nulls) and (case.nested or kind in "biu"):
        with pytest.raises(CellError) as refused:
            decode(array, column)
        assert refused.value.row == nulls.index(True)
    else:
        found = decode(array, column)
        assert list(found) == ["x"]
        assert equal(found["x"], case.expected(rows, {"f": np.nan, "O": None}.get(kind, "NaT")))


@pytest.mark.parametrize("layout", ["sliced", "chunked"])
@pytest.mark.parametrize(
    "rows", [[0, 1, 2] * 4, [2, None, 0] * 4, [None] * 9, []], ids=["full", "some null", "all null", "empty"]
)
@pytest.mark.parametrize("case", [case for case in CELLS if not case.ragged], ids=lambda case: str(case.kind))
def test_every_type_can_be_masked_or_refuse_nulls(case: Case, rows: list[int | None], layout: str) -> None:
    """`Mask` replaces nulls and always adds marks. `RaiseOnNull` raises at the first null of any type."""
    array = arranged(case.array(rows), layout)
    nulls = np.array([row is None or case.kind == pa.null() for row in rows], bool)

    found = decode(array, ColumnDecoding(name="x", nulls=Mask()))

    wanted = case.expected(rows, {"m": "NaT", "M": "NaT", "O": None}.get(np.dtype(case.dtype).kind, 0))
    marks = np.broadcast_to(~nulls.reshape(-1, *[1] * (wanted.ndim - 1)), wanted.shape)
    assert list(found) == ["x", "x_valid"]
    assert equal(found["x"], wanted)
    assert equal(found["x_valid"], marks)
    if nulls.any():
        with pytest.raises(CellError) as refused:
            decode(array, ColumnDecoding(name="x", nulls=RaiseOnNull()))
        assert refused.value.row == nulls.argmax()
    else:
        assert equal(decode(array, ColumnDecoding(name="x", nulls=RaiseOnNull()))["x"], wanted)


# Lists: a slow reference implementation that works cell by cell on Python's lists.

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=3),
    pa.timestamp("us"): st.integers(-(2**62), 2**62).map(lambda number: np.datetime64(number, "us")),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["a", "b"]),
}
FILL_VALUES: dict[str, Any] = {"i": 7, "b": True, "f": 0.5, "O": "fill", "M": np.datetime64(3, "us")}


WRAPPERS: list[Callable[[Any], Any]] = [
    pa.list_,
    pa.large_list,
    pa.list_view,
    *(lambda kind, size=size: pa.list_(kind, size) for size in (0, 1, 2)),
]


def cells_of(kind: Any, *, nulls: bool) -> st.SearchStrategy[Any]:
    """Return a strategy of Python cells of a type."""
    size = getattr(kind, "list_size", None)
    if kind in LEAVES:
        found = LEAVES[kind]
    else:
        items = cells_of(kind.value_type, nulls=nulls)
        found = st.lists(items, min_size=size or 0, max_size=3 if size is None else size)
    return found | st.none() if nulls else found


@dataclass(frozen=True)
class Oracle:
    """The expected results for cells of a type under a policy for nulls."""

    nulls: Nulls
    dtype: np.dtype[Any]

    @property
    def null_value(self) -> Any:
        """The value that replaces a null."""
        if isinstance(self.nulls, Fill):
            return self.nulls.value
        default = {"i": 0, "b": False, "f": 0 if isinstance(self.nulls, Mask) else np.nan, "M": "NaT"}
        return default.get(self.dtype.kind)

    def refused(self, kind: Any, cell: Any, *, dense: bool) -> bool:
        """Return whether a cell holds a null that raises. With `dense`, null lists raise by default."""
        if cell is None:
            if isinstance(self.nulls, Fill | Mask):
                return False
            fixed = isinstance(kind, pa.FixedSizeListType) or (kind in LEAVES and self.dtype.kind in "ib")
            return isinstance(self.nulls, RaiseOnNull) or fixed or (dense and kind not in LEAVES)
        return kind not in LEAVES and any(self.refused(kind.value_type, item, dense=dense) for item in cell)

    def objects(self, kind: Any, cells: list[Any], *, marks: bool) -> npt.NDArray[Any]:
        """Return the values of cells under `AsObjects`, or their marks."""
        if kind in LEAVES:
            values = [cell is not None if marks else self.null_value if cell is None else cell for cell in cells]
            return np.array(values, "bool" if marks else self.dtype)
        size = getattr(kind, "list_size", None)
        if size is not None:
            flat = [item for cell in cells for item in ([None] * size if cell is None else cell)]
            inner = self.objects(kind.value_type, flat, marks=marks)
            return inner.reshape(len(cells), size, *inner.shape[1:])
        found = np.empty(len(cells), object)
        for row, cell in enumerate(cells):
            if cell is not None or isinstance(self.nulls, Fill):
                found[row] = self.objects(kind.value_type, cell or [], marks=marks)
        return found

    def fill(self, kind: Any, cell: Any, target: npt.NDArray[Any], valid: npt.NDArray[Any]) -> None:
        """Write a cell to its place in a dense array."""
        if kind in LEAVES:
            target[...] = self.null_value if cell is None else cell
            valid[...] = cell is not None
            return
        items = [None] * getattr(kind, "list_size", 0) if cell is None else cell
        for place, item in enumerate(items[: len(target)]):
            self.fill(kind.value_type, item, target[place, ...], valid[place, ...])


def widths(kind: Any, cells: list[Any]) -> list[int]:
    """Return the length of the longest list of each level."""
    if kind in LEAVES:
        return []
    longest = getattr(kind, "list_size", max((len(cell or []) for cell in cells), default=0))
    below = [item for cell in cells for item in ([None] * getattr(kind, "list_size", 0) if cell is None else cell)]
    return [longest, *widths(kind.value_type, below)]


@st.composite
def columns(draw: st.DrawFn) -> tuple[Any, list[Any], Any, Oracle]:
    """Draw a type of lists, its cells, the same cells as an Arrow array in some layout, and an oracle."""
    leaf = kind = draw(st.sampled_from(list(LEAVES)))
    for wrapper in draw(st.lists(st.sampled_from(WRAPPERS), min_size=1, max_size=3)):
        kind = wrapper(kind)
    dtype = np.dtype({"int32": "i4", "bool": "?", "double": "f8", "timestamp[us]": "M8[us]"}.get(str(leaf), "O"))
    cells = draw(st.lists(cells_of(kind, nulls=draw(st.booleans())), max_size=6))
    nulls: Any = draw(st.sampled_from([DefaultNulls(), Fill(FILL_VALUES[dtype.kind]), Mask(), RaiseOnNull()]))
    array = arranged(pa.array(cells, kind), draw(st.sampled_from(["whole", "sliced", "chunked", "no chunk"])))
    return kind, cells, array, Oracle(nulls, dtype)


def refused_row(oracle: Oracle, kind: Any, cells: list[Any], *, dense: bool) -> int | None:
    """Return the first row with a null that raises."""
    return next((row for row, cell in enumerate(cells) if oracle.refused(kind, cell, dense=dense)), None)


@given(columns())
def test_lists_are_arrays_in_an_object_array(drawn: tuple[Any, list[Any], Any, Oracle]) -> None:
    """Under `AsObjects` each cell is an array of its own, for any nesting, and nulls follow their policy."""
    kind, cells, array, oracle = drawn
    column = ColumnDecoding(name="x", nulls=oracle.nulls)

    if refused_row(oracle, kind, cells, dense=False) is not None:
        with pytest.raises(CellError, match="null") as refused:
            decode(array, column)
        assert oracle.refused(kind, cells[refused.value.row], dense=False)  # type: ignore[index]
        return
    found = decode(array, column)
    assert list(found) == (["x", "x_valid"] if isinstance(oracle.nulls, Mask) else ["x"])
    assert equal(found["x"], oracle.objects(kind, cells, marks=False))
    if isinstance(oracle.nulls, Mask):
        assert equal(found["x_valid"], oracle.objects(kind, cells, marks=True))


def is_fixed(kind: Any) -> bool:
    """Return whether all levels of lists have a fixed size."""
    return kind in LEAVES or (isinstance(kind, pa.FixedSizeListType) and is_fixed(kind.value_type))


def ragged_level(kind: Any, cells: list[Any]) -> tuple[tuple[int, ...], Any, list[Any]]:
    """Return the fixed sizes above the outermost ragged lists, the type of these lists, and all of them."""
    if not isinstance(kind, pa.FixedSizeListType):
        return (), kind, cells
    below = [item for cell in cells for item in ([None] * kind.list_size if cell is None else cell)]
    sizes, inner, lists = ragged_level(kind.value_type, below)
    return (kind.list_size, *sizes), inner, lists


@given(columns(), st.sampled_from([None, 0, 1, 2, 3, -1, -2, -3]))
def test_padded_lists_are_one_array(drawn: tuple[Any, list[Any], Any, Oracle], signed_length: int | None) -> None:
    """`Pad` pads all ragged levels and returns the real lengths. Longer lists are cut or raise."""
    kind, cells, array, oracle = drawn
    padding: Any = {"i": 9, "b": True, "f": -1.5, "O": "pad", "M": np.datetime64(9, "us")}[oracle.dtype.kind]
    length = None if signed_length is None else abs(signed_length)
    pad = Pad(padding, length, truncate=signed_length is not None and signed_length < 0)
    column = ColumnDecoding(name="x", nulls=oracle.nulls, ragged=pad)
    sizes, _, lists = ragged_level(kind, cells)
    counts = np.array([0 if is_fixed(kind) or one is None else len(one) for one in lists], "int64")
    lengths = counts.reshape(len(cells), *sizes)

    too_long = length is not None and not pad.truncate and lengths.max(initial=0) > length
    if too_long or refused_row(oracle, kind, cells, dense=True) is not None:
        with pytest.raises(CellError):
            decode(array, column)
        return
    found = decode(array, column)
    shape = [len(cells), *widths(kind, cells)]
    if length is not None and not is_fixed(kind):
        shape[1 + len(sizes)] = length
    values, valid = np.full(shape, padding, oracle.dtype), np.zeros(shape, "bool")
    for row, cell in enumerate(cells):
        oracle.fill(kind, cell, values[row, ...], valid[row, ...])
    assert equal(found["x"], values)
    assert "x_length" not in found if is_fixed(kind) else equal(found["x_length"], lengths)
    assert equal(found["x_valid"], valid) if isinstance(oracle.nulls, Mask) else "x_valid" not in found


@given(columns())
def test_offsets_separate_the_lists_of_flat_values(drawn: tuple[Any, list[Any], Any, Oracle]) -> None:
    """`Offsets` returns all items in one array, without items of null lists, and where each list starts."""
    kind, cells, array, oracle = drawn
    column = ColumnDecoding(name="x", nulls=oracle.nulls, ragged=Offsets())
    _, level, lists = ragged_level(kind, cells)

    null_list_raises = isinstance(oracle.nulls, DefaultNulls) and not is_fixed(kind) and None in lists
    if null_list_raises or refused_row(oracle, kind, cells, dense=False) is not None:
        with pytest.raises(CellError, match="null"):
            decode(array, column)
        return
    found = decode(array, column)
    if is_fixed(kind):
        assert "x_offsets" not in found
        return
    items = [item for one in lists for item in one or []]
    assert equal(found["x"], oracle.objects(level.value_type, items, marks=False))
    assert equal(found["x_offsets"], np.cumsum([0, *(len(one or []) for one in lists)]))
    if isinstance(oracle.nulls, Mask):
        assert equal(found["x_valid"], oracle.objects(level.value_type, items, marks=True))


def is_uneven(kind: Any, cells: list[Any]) -> bool:
    """Return whether some lists of one level differ in length, without nulls."""
    if kind in LEAVES:
        return False
    present = [cell for cell in cells if cell is not None]
    return len({len(cell) for cell in present}) > 1 or is_uneven(kind.value_type, [item for cell in present for item in cell])


@given(columns())
def test_lists_of_one_length_are_one_array(drawn: tuple[Any, list[Any], Any, Oracle]) -> None:
    """`RaiseIfRagged` returns a dense array or raises. It cuts nothing, and fills only null lists."""
    kind, cells, array, oracle = drawn
    column = ColumnDecoding(name="x", nulls=oracle.nulls, ragged=RaiseIfRagged())

    null = refused_row(oracle, kind, cells, dense=True) is not None
    if null or is_uneven(kind, cells):
        with pytest.raises(CellError, match=r"null|needs one length"):
            decode(array, column)
        return
    found = decode(array, column)["x"]
    values = np.full([len(cells), *widths(kind, cells)], oracle.null_value, oracle.dtype)
    for row, cell in enumerate(cells):
        oracle.fill(kind, cell, values[row, ...], np.zeros(values.shape[1:], "bool"))
    assert equal(found, values)


# Single cases.


def test_numbers_and_times_without_nulls_are_views_of_arrows_memory() -> None:
    """One chunk is not copied, and its view is read-only, because Arrow may share the memory."""
    moments = pa.array([5, 6, 7], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype="f4").reshape(2, 3, 4))
    lists = pa.array([[1.0, 2.0], [3.0]])
    flat = lists.values

    for array, buffer, column in [
        (pa.array([1, 2, 3]), None, ColumnDecoding(name="x")),
        (pa.array(np.arange(3, dtype="f2")), None, ColumnDecoding(name="x")),
        (moments, None, ColumnDecoding(name="x")),
        (tensors, tensors.storage.values.buffers()[1], ColumnDecoding(name="x")),
        (lists, flat.buffers()[1], ColumnDecoding(name="x", ragged=Offsets())),
        (pa.array([[1, 2], [3, 4]]), None, ColumnDecoding(name="x", ragged=RaiseIfRagged())),
    ]:
        found = decode(array[1:], column)["x"]
        memory = (buffer or (array.values if hasattr(array, "values") else array).buffers()[1]).address
        assert found.__array_interface__["data"][0] > memory
        assert found.__array_interface__["data"][0] < memory + 64
        assert not found.flags.writeable


def test_cells_of_lists_are_views_of_one_array() -> None:
    """Cells of lists are not copied."""
    found = decode(pa.array([[1, 2], [3]]), ColumnDecoding(name="x"))["x"]

    assert found[0].base is found[1].base


def test_replacing_a_null_does_not_write_into_arrows_memory() -> None:
    """The value that replaces a null is written to a copy."""
    array = pa.array([1, None, 3])

    decode(array, ColumnDecoding(name="x", nulls=Fill(9)))

    assert array.to_pylist() == [1, None, 3]
    assert decode(array, ColumnDecoding(name="x", nulls=Mask()))["x"].tolist() == [1, 0, 3]


@pytest.mark.parametrize(("kind", "value"), [
    (pa.int64(), -1), (pa.uint64(), 2**64 - 1), (pa.bool_(), True), (pa.float32(), 0.5), (pa.string(), "none"),
    (pa.binary(3), b"nil"), (pa.date32(), np.datetime64("2020-02-29")), (pa.decimal128(5, 2), Decimal("1.50")), (pa.uuid(), ID),
    (pa.null(), "any"), (pa.dictionary(pa.int8(), pa.string()), "none"), (pa.time64("ns"), np.timedelta64(1, "ns")),
])  # fmt: skip
def test_fill_replaces_nulls_exactly(kind: Any, value: Any) -> None:
    """`Fill` writes its exact value, in the dtype of the column."""
    found = decode(pa.nulls(2, kind), ColumnDecoding(name="x", nulls=Fill(value)))

    assert list(found) == ["x"]
    assert found["x"].tolist() == np.array([value, value], found["x"].dtype).tolist()


def test_a_null_in_a_dictionary_is_a_null() -> None:
    """A cell is null if its index is null, or if the dictionary's value is null."""
    array = pa.DictionaryArray.from_arrays(pa.array([0, None, 1]), pa.array(["a", None]))

    found = decode(array, ColumnDecoding(name="x", nulls=Mask()))

    assert found["x"].tolist() == ["a", None, None]
    assert found["x_valid"].tolist() == [True, False, False]


def test_encoded_lists_and_structs_are_decoded() -> None:
    """Lists and structs may be dictionary- or run-end-encoded. Rows do not share a mutable cell."""
    lists = pa.DictionaryArray.from_arrays(pa.array([0, None, 0]), pa.array([[1, 2]]))
    structs = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array([{"a": 1}]))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([[1.0], [2.0, 3.0]]))

    dicts = decode(structs, ColumnDecoding(name="x"))["x"]
    inside = decode(pa.StructArray.from_arrays([lists], names=["a"]), ColumnDecoding(name="x"))["x"]

    assert inside.tolist() == [{"a": [1, 2]}, {"a": None}, {"a": [1, 2]}]
    assert [cell if cell is None else cell.tolist() for cell in decode(lists, ColumnDecoding(name="x"))["x"]] == [
        [1, 2],
        None,
        [1, 2],
    ]
    assert dicts.tolist() == [{"a": 1}, {"a": 1}]
    assert dicts[0] is not dicts[1]
    assert decode(runs[1:], ColumnDecoding(name="x", ragged=Pad()))["x"].tolist() == [[1.0, 0.0], [2.0, 3.0]]


def test_items_of_a_null_list_are_not_returned() -> None:
    """Arrow allows any items behind a null list. They are not returned."""
    array = pa.ListArray.from_arrays(pa.array([0, 1, 3, 4]), pa.array([1, None, 3, 4]), mask=pa.array([False, True, False]))

    assert decode(array, ColumnDecoding(name="x", nulls=Fill(0), ragged=Offsets()))["x"].tolist() == [1, 4]
    assert [cell if cell is None else cell.tolist() for cell in decode(array, ColumnDecoding(name="x"))["x"]] == [
        [1],
        None,
        [4],
    ]


def test_values_behind_a_null_are_not_returned() -> None:
    """The items of a null list of fixed length and the index of a null dictionary cell are ignored."""
    mask = pa.array([False, True, False])
    pairs = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4, 5, 6]), 2, mask=mask)
    nested = pa.FixedSizeListArray.from_arrays(pa.array([[1], [2, 3], [4]]), 1, mask=mask)
    index = pa.Array.from_buffers(pa.int8(), 3, [pa.py_buffer(b"\5"), pa.py_buffer(b"\0\x63\0")])
    words = pa.DictionaryArray.from_arrays(index, pa.array(["a"]), safe=False)

    filled = decode(pairs, ColumnDecoding(name="x", nulls=Mask()))
    padded = decode(nested, ColumnDecoding(name="x", nulls=Fill(7), ragged=Pad()))

    assert filled["x"].tolist() == [[1, 2], [0, 0], [5, 6]]
    assert filled["x_valid"].tolist() == [[True, True], [False, False], [True, True]]
    assert (padded["x"].tolist(), padded["x_length"].tolist()) == ([[[1]], [[0]], [[4]]], [[1], [0], [1]])
    assert decode(words, ColumnDecoding(name="x"))["x"].tolist() == ["a", None, "a"]


def test_long_lists_are_cut_at_their_end() -> None:
    """The first values stay, and the real lengths are returned."""
    array = pa.array([[1, 2, 3], [4], [], [5, 6], [7, 8, 9, 10]])

    found = decode(array, ColumnDecoding(name="x", nulls=Mask(), ragged=Pad(-1, 2, truncate=True)))

    assert found["x"].tolist() == [[1, 2], [4, -1], [-1, -1], [5, 6], [7, 8]]
    assert found["x_length"].tolist() == [3, 1, 0, 2, 4]
    assert found["x_valid"].tolist() == [[True, True], [True, False], [False, False], [True, True], [True, True]]


def test_list_views_may_overlap_and_lie_in_any_order() -> None:
    """The lists of a list view may share items and lie in any order."""
    array = pa.ListViewArray.from_arrays(pa.array([2, 0, 1]), pa.array([2, 2, 2]), pa.array([1, 2, 3, 4]))

    assert decode(array, ColumnDecoding(name="x", ragged=RaiseIfRagged()))["x"].tolist() == [[3, 4], [1, 2], [2, 3]]


def test_structs_hold_plain_python_values() -> None:
    """Fields of structs are Python values. Times are NumPy's where Python cannot represent them."""
    utc, late = dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC), np.datetime64(2**62, "us")
    fields = {
        "day": (pa.date32(), dt.date(2020, 1, 2), dt.date(2020, 1, 2)),
        "day64": (pa.date64(), dt.date(2020, 1, 2), dt.date(2020, 1, 2)),
        "us": (pa.timestamp("us"), utc.replace(tzinfo=None), utc.replace(tzinfo=None)),
        "zoned": (pa.timestamp("ms", "Asia/Tokyo"), utc, utc),
        "late": (pa.timestamp("us"), late, late),
        "ns": (pa.timestamp("ns"), np.datetime64(1, "ns"), np.datetime64(1, "ns")),
        "time": (pa.time32("s"), dt.time(1, 2, 3), dt.time(1, 2, 3)),
        "time_ns": (pa.time64("ns"), 86_399_999_999_999, np.timedelta64(86_399_999_999_999, "ns")),
        "for": (pa.duration("s"), dt.timedelta(1), dt.timedelta(1)),
        "list": (pa.list_(pa.int8()), [1, None], [1, None]),
        "pair": (pa.list_(pa.bool_(), 2), [True, None], [True, None]),
        "map": (pa.map_(pa.string(), pa.struct({"a": pa.float32()})), [("k", {"a": 0.5})], [("k", {"a": 0.5})]),
        "word": (pa.dictionary(pa.int8(), pa.string()), "w", "w"),
        "sum": (pa.decimal128(5, 2), Decimal("1.50"), Decimal("1.50")),
        "none": (pa.null(), None, None),
    }
    kind = pa.struct({name: kind for name, (kind, _, _) in fields.items()})
    array = pa.array([{name: given for name, (_, given, _) in fields.items()}, None, dict.fromkeys(fields)], kind)

    full, null, all_null = decode(array, ColumnDecoding(name="x"))["x"]

    assert null is None
    assert all_null == dict.fromkeys(fields)
    assert [name for name, (_, _, wanted) in fields.items() if not equal(full[name], wanted)] == []
    assert full["zoned"].tzinfo is dt.UTC


def test_extensions_in_structs_are_plain_values_too() -> None:
    """In a struct a UUID stays a UUID, a bool8 is a bool, and a tensor is a list of its values."""
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(4).reshape(1, 2, 2))
    arrays = [
        pa.uuid().wrap_array(pa.array([ID.bytes], pa.binary(16))),
        pa.bool8().wrap_array(pa.array([2], pa.int8())),
        tensor,
    ]

    (found,) = decode(pa.StructArray.from_arrays(arrays, names=["id", "flag", "grid"]), ColumnDecoding(name="x"))["x"]

    assert found == {"id": ID, "flag": True, "grid": [0, 1, 2, 3]}


NULL = "Say what a null becomes: .nulls(penstock.Fill(value), 'x'), or penstock.Mask()"
WHERE = f"{NULL}, or keep the rows that have a value: .where(penstock.col('x').is_not_null())."
TWO = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
GARBLED = pa.array([b"a", b"\xff"]).view(pa.string())
BROKEN = variable_tensor().wrap_array(pa.array([{"data": [1, 2], "shape": [3, 1]}], VARIABLE))


@pytest.mark.parametrize(("array", "nulls", "ragged", "row", "problem"), [
    (pa.array([1, None]), None, None, 1, f"the value is null, and int64 has no value for a null. {WHERE}"),
    (pa.array(["a", None]), RaiseOnNull(), None, 1, f"the value is null, and RaiseOnNull() refuses nulls. {WHERE}"),
    (pa.array([[], [1, 2], [3, None]]), None, None, 2, f"an item is null, and int64 has no value for a null. {NULL}."),
    (pa.array([[1.0], None], pa.list_(pa.float32(), 1)), None, None, 1,
     f"the value is null, and fixed_size_list<item: float>[1] has no value for a null. {WHERE}"),
    (pa.array([[[True]], [None]], pa.list_(pa.list_(pa.bool_(), 1))), None, None, 1,
     f"an item is null, and fixed_size_list<item: bool>[1] has no value for a null. {NULL}."),
    (pa.array([[1], None]), None, Offsets(), 1, f"the value is null, and Offsets() cannot hold a null list. {WHERE}"),
    (pa.array([[[[1]], [[2], [None]]]] * 2), None, None, 0, f"an item is null, and int64 has no value for a null. {NULL}."),
    (pa.array([[1], [1, 2, 3]]), None, Pad(length=2), 1,
     "the list has 3 values, and Pad(value=0, length=2, truncate=False) allows 2. "
     "Give a larger length, or truncate=True to cut."),
    (pa.array([[[1]], [[1, 2, 3], []]], pa.list_(pa.list_(pa.int8()))), None, RaiseIfRagged(), 1,
     "the list has 2 values, and that of row 0 has 1. RaiseIfRagged() needs one length. Use Pad(), Offsets() or AsObjects()."),
    (pa.array([[[1]], [[1]], [[1, 2]]]), None, RaiseIfRagged(), 2,
     "a list in it has 2 values, and one of row 0 has 1. RaiseIfRagged() needs one length. "
     "Use Pad(), Offsets() or AsObjects()."),
    (TWO, None, None, None,
     "struct<a: int64, a: int64> has several fields with one name, which a dict cannot hold. Rename them in the table."),
    (GARBLED, None, None, 1,
     "its text is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte. "
     "Write it again as UTF-8 or as binary. To read the bytes as they are, open Parquet files with a schema that has "
     "pyarrow.binary() there: format=ParquetFormat(columns=schema)."),
    (GARBLED.dictionary_encode(), None, None, 1,
     "its text is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte. "
     "Write it again as UTF-8 or as binary. To read the bytes as they are, open Parquet files with a schema that has "
     "pyarrow.binary() there: format=ParquetFormat(columns=schema)."),
    (BROKEN, None, None, 0, "the tensor has 2 values, and its shape is [3, 1]. Both must agree. Write the table again."),
])  # fmt: skip
def test_an_error_says_what_where_and_what_to_do(
    array: Any, nulls: Nulls | None, ragged: Ragged | None, row: int | None, problem: str
) -> None:
    """An error has the column, the row and the problem, for any chunks, and can be pickled."""
    column = ColumnDecoding(name="x", nulls=nulls or DefaultNulls(), ragged=ragged or AsObjects())

    for given_array in (array, pa.chunked_array([array[:1], array[1:]])):
        with pytest.raises(CellError) as refused:
            decode(given_array, column)
        error = pickle.loads(pickle.dumps(refused.value))  # noqa: S301 - it may come from another process

        assert isinstance(error, CellError)
        assert (error.column, error.row, error.problem) == ("x", row, problem)
        assert str(error) == f"Column 'x'{'' if row is None else f', row {row}'}: {problem}"


def test_more_items_than_arrow_can_count_raise() -> None:
    """More than 2**31 items in one array raise. Nulls take no memory, so that the test can have so many."""
    many = pa.ListArray.from_arrays(pa.array([0, 2**31 - 1], pa.int32()), pa.nulls(2**31 - 1))

    with pytest.raises(CellError) as refused:
        decode(pa.chunked_array([many, many]), ColumnDecoding(name="x", ragged=Offsets()))

    assert refused.value.problem == "its 2 parts exceed the 2**31 items of one Arrow array. Read fewer rows at a time."
    assert isinstance(refused.value.__cause__, pa.ArrowInvalid)


def test_a_policy_value_that_does_not_fit_raises_without_nulls() -> None:
    """Values of `Fill` and `Pad` are checked against the type, even if no row needs them."""
    with pytest.raises(ArgumentError) as fill:
        decode(pa.array([1], pa.uint8()), ColumnDecoding(name="x", nulls=Fill(300)))
    with pytest.raises(ArgumentError) as pad:
        decode(pa.array([], pa.list_(pa.string())), ColumnDecoding(name="x", ragged=Pad(1)))

    assert str(fill.value) == (
        "Column 'x' got Fill(value=300), which does not fit uint8; expected an integer from 0 to 255. Change the value, or "
        "use Mask()."
    )
    assert str(pad.value) == (
        "Column 'x' got Pad(value=1, length=None, truncate=False), which does not fit string; expected a str. Change the "
        "value, or use AsObjects()."
    )


# Files that other software wrote.


def untimed(kind: Any) -> Any:
    """Return a type with integers for times, because pyarrow cannot convert all times to Python."""
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(untimed(field.type)) for field in kind])
    return getattr(pa, f"int{kind.bit_width}")() if pa.types.is_temporal(kind) else kind


def bare(value: Any, kind: Any) -> Any:
    """Return a cell as lists, numbers and text, which can be compared, NaN too."""
    if value is None:
        return None
    if isinstance(kind, pa.StructType):
        return {field.name: bare(value[field.name], field.type) for field in kind}
    if isinstance(kind, pa.MapType):
        return [(bare(key, kind.key_type), bare(item, kind.item_type)) for key, item in value]
    if hasattr(kind, "value_type"):
        return [bare(item, kind.value_type) for item in value]
    if isinstance(value, dt.datetime):
        value = np.datetime64(value.replace(tzinfo=None), kind.unit)
    if isinstance(value, np.generic):
        return value.view("int64").item() if value.dtype.kind in "mM" else bare(value.item(), kind)
    return str(value) if isinstance(value, float) else value


def masked(values: Any, valid: Any) -> Any:
    """Return None in place of each value that is not valid."""
    if not isinstance(valid, np.ndarray):
        return values if valid else None
    values = values if values.dtype.kind in "mMO" else values.tolist()
    return [
        masked(value, present)
        for value, present in zip(values, valid if valid.dtype == object else valid.tolist(), strict=True)
    ]


@pytest.mark.slow
def test_real_files_are_decoded_as_pyarrow_reads_them(corpus: Callable[[str], Path]) -> None:
    """Each value of each column of each readable corpus file equals the Python value of pyarrow."""
    inventory = json.loads(corpus("parquet/inventory.json").read_text())["files"]
    readable = [name for name, facts in inventory.items() if facts.get("read") == "ok"]
    seen, differing = 0, []

    for name in readable:
        with pq.ParquetFile(corpus(name)) as file:
            table = file.read()
        for number, field in enumerate(table.schema):
            stored = table.column(number)
            found = decode(stored, ColumnDecoding(name="x", nulls=Mask()))
            cells = masked(found["x"], found["x_valid"])
            cells_of_file = stored.cast(untimed(field.type)).to_pylist()
            if [bare(cell, field.type) for cell in cells] != [bare(cell, untimed(field.type)) for cell in cells_of_file]:
                differing.append(f"{name}: {field}")
            seen += 1

    assert differing == []
    assert seen > 300
