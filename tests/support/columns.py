"""Random columns of many types, and the layouts in which Parquet can store them."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

UTC = dt.UTC
DAYS = st.dates(dt.date(1990, 1, 1), dt.date(2040, 1, 1))
MOMENTS = st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2040, 1, 1))  # noqa: DTZ001 - some columns have no zone

PLAIN: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.float16(): st.integers(-100, 100).map(np.float16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=6),
    pa.large_string(): st.text(max_size=6),
    pa.string_view(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=6),
    pa.large_binary(): st.binary(max_size=6),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): DAYS,
    pa.time64("us"): st.times(),
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("ns", tz="UTC"): MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    pa.duration("ms"): st.integers(0, 10**6).map(lambda number: dt.timedelta(milliseconds=number)),
    pa.decimal128(9, 2): st.integers(-(10**8), 10**8).map(lambda number: decimal.Decimal(number) / 100),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["red", "green", "blue", ""]),
}
BLOBS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.binary(): st.integers(0, 2**32).map(lambda seed: np.random.default_rng(seed).bytes(1024 + seed % 3000)),
    pa.large_binary(): st.integers(0, 2**32).map(lambda seed: np.random.default_rng(seed).bytes(2048)),
    pa.binary(2000): st.integers(0, 2**32).map(lambda seed: np.random.default_rng(seed).bytes(2000)),
}
"""Large cells, which readers locate in their pages without decoding."""

LAYOUTS = st.fixed_dictionaries(
    {
        "write_page_index": st.sampled_from([True, True, False]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]),
        "use_dictionary": st.booleans(),
        "write_statistics": st.booleans(),
        "write_page_checksum": st.booleans(),
        "store_schema": st.sampled_from([True, True, False]),
        "row_group_size": st.sampled_from([1000, 40, 7]),
        "data_page_size": st.sampled_from([1, 200, 1 << 20]),
        "write_batch_size": st.sampled_from([1, 4, 1024]),
    }
)
"""Options of pyarrow's writer: with and without a page index, both page versions, tiny and large pages."""

kinds: st.SearchStrategy[pa.DataType] = st.recursive(
    st.sampled_from([kind for kind in PLAIN if kind != pa.string_view()]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.builds(pa.list_, inner, st.integers(1, 3)),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: pa.struct([(f"f{at}", one) for at, one in enumerate(some)])),
        inner.map(lambda one: pa.map_(pa.string(), one)),
    ),
    max_leaves=4,
)


def cells(kind: pa.DataType, *, nulls: bool) -> st.SearchStrategy[Any]:
    """Return a strategy for the cells of a column as Python values."""
    if kind in PLAIN:
        found = PLAIN[kind]
    elif pa.types.is_struct(kind):
        found = st.fixed_dictionaries({field.name: cells(field.type, nulls=nulls) for field in kind})
    elif pa.types.is_map(kind):
        found = st.lists(st.tuples(st.text(max_size=3), cells(kind.item_type, nulls=nulls)), max_size=3)
    elif pa.types.is_fixed_size_list(kind):
        found = st.lists(cells(kind.value_type, nulls=nulls), min_size=kind.list_size, max_size=kind.list_size)
    else:
        found = st.lists(cells(kind.value_type, nulls=nulls), max_size=4)
    return st.none() | found if nulls else found


@st.composite
def arrays(draw: st.DrawFn, rows: int, kind: pa.DataType | None = None) -> pa.Array:
    """Draw a column with the given number of rows: a few cells, repeated in random order."""
    blob = kind is None and draw(st.integers(0, 3)) == 0
    if blob:
        kind, some = draw(st.sampled_from(list(BLOBS.items())))
        some = st.none() | some if draw(st.booleans()) else some
    else:
        kind = draw(kinds | st.just(pa.string_view())) if kind is None else kind
        some = cells(kind, nulls=draw(st.booleans()))
    drawn = draw(st.lists(some, min_size=1, max_size=12))
    order = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, len(drawn), rows)
    return pa.array([drawn[at] for at in order], kind)


def same(one: Any, other: Any) -> bool:
    """Return whether two cells or columns have the same type and value; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray) and one.dtype.kind != "O":
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape) and all(map(same, one.ravel(), other.ravel()))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - NaN differs from itself
