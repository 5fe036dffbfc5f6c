"""The stable hash: its numbers are frozen, equal values hash alike in every type, and hashes spread evenly."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from operator import xor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ArgumentError
from penstock.stable_hash import is_hashable, stable_hash

NULL = 13221476204685177574

PINNED: list[tuple[pa.Array, int]] = [
    (pa.array([0]), 575854417547002445),
    (pa.array([1]), 17254714976675052272),
    (pa.array([-1]), 6701965372098425713),
    (pa.array([2**64 - 1], pa.uint64()), 6701965372098425713),
    (pa.array([True]), 17254714976675052272),
    (pa.array([1.5]), 14526652304781109649),
    (pa.array([float("nan")]), 17924099647003007521),
    (pa.array([""]), 575854417547002445),
    (pa.array(["a"]), 12383508396565130032),
    (pa.array(["exactly8"]), 18199454370511531863),
    (pa.array(["näher, mein Gott, zu dir"]), 5689499057110908617),
    (pa.array([b"\x00\xff"]), 7131395154910422401),
    (pa.array([Decimal("-12.50")]), 11074740161701968623),
    (pa.array([date(2024, 1, 31)]), 1140079889142867865),
    (pa.array([time(12, 30)], pa.time32("s")), 7788151752537821615),
    (pa.array([datetime(2024, 1, 31, tzinfo=UTC)], pa.timestamp("us", "UTC")), 1648982434847928088),
    (pa.array([timedelta(seconds=3)], pa.duration("ms")), 10645970927489763744),
    (pa.array([None], pa.int8()), 13221476204685177574),
]


MASK = 2**64 - 1


def mixed(bits: int) -> int:
    """Return splitmix64's finaliser, in plain Python."""
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & MASK
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & MASK
    return bits ^ bits >> 31


def plain_hash(value: int | bytes, seed: int) -> int:
    """Return the hash as defined, one value at a time."""
    golden = 0x9E3779B97F4A7C15
    if isinstance(value, int):
        content = value + golden
    else:
        words = [int.from_bytes(value[at : at + 8], "little") for at in range(0, len(value), 8)]
        places = [mixed((place + 1) * golden & MASK) for place in range(len(words))]
        content = sum(map(mixed, map(xor, words, places))) + (len(value) + 1) * golden
    return mixed(mixed(content & MASK) ^ mixed(seed + 0xD1B54A32D192ED03 & MASK))


def hashes(values: list[Any], type_: pa.DataType, seed: int = 0) -> list[int]:
    """Return the hashes of values of an Arrow type."""
    return [int(found) for found in stable_hash(pa.array(values, type_), seed)]


@pytest.mark.parametrize(("values", "expected"), PINNED, ids=lambda value: str(value).replace("\n", ""))
def test_the_numbers_are_frozen_for_ever(values: pa.Array, expected: int) -> None:
    """The hashes never change: another number would move rows between the splits of every user."""
    assert stable_hash(values).tolist() == [expected]


def test_the_seed_is_frozen_too() -> None:
    """Each seed, also a negative one, has its own frozen numbers."""
    assert [hashes([1], pa.int64(), seed) for seed in (1, -1)] == [[9069783223290127394], [10141731263270219347]]
    assert hashes(["a"], pa.string(), 1) == [8820678782203320904]
    assert hashes([None], pa.string(), 1) == [4478781277335031849]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.lists(st.binary(max_size=40)), st.integers(0, 2**64 - 1))
def test_many_values_at_once_hash_as_one_at_a_time(numbers: list[int], strings: list[bytes], seed: int) -> None:
    """Hashing whole arrays gives the hashes that the definition gives for single values."""
    assert hashes(numbers, pa.int64(), seed) == [plain_hash(number, seed) for number in numbers]
    assert hashes(strings, pa.binary(), seed) == [plain_hash(string, seed) for string in strings]


@pytest.mark.parametrize(
    "type_",
    [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    ids=str,
)
def test_integers_of_all_widths_hash_alike(type_: pa.DataType) -> None:
    """A number keeps its hash when its column is widened."""
    assert hashes([0, 1, None, 100], type_) == hashes([0, 1, None, 100], pa.int64())


def test_negative_and_very_large_integers_hash_by_their_64_bits() -> None:
    """In two's complement -1 is the largest uint64; booleans hash as 0 and 1."""
    assert hashes([-1], pa.int8()) == hashes([-1], pa.int64()) == hashes([2**64 - 1], pa.uint64())
    assert hashes([True, False, None], pa.bool_()) == hashes([1, 0, None], pa.int64())


@pytest.mark.parametrize(
    "type_",
    [
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
    ids=str,
)
def test_strings_and_bytes_hash_alike_in_every_layout(type_: pa.DataType) -> None:
    """Only the bytes of a value count, not its Arrow layout."""
    values = ["a", None, "", "a\0", "exactly8", "nine bytes", "ü", "a"]

    assert hashes(values, type_) == hashes(values, pa.string())


def test_fixed_size_bytes_and_extension_types_hash_by_their_bytes() -> None:
    """A UUID hashes like its sixteen bytes."""
    raw = [b"0123456789abcdef", None]
    stored = pa.array(raw, pa.binary(16))

    assert stable_hash(stored).tolist() == hashes(raw, pa.binary())
    assert stable_hash(pa.ExtensionArray.from_storage(pa.uuid(), stored)).tolist() == hashes(raw, pa.binary())


def test_zero_bytes_at_the_end_are_part_of_a_string() -> None:
    """Strings that differ in zero bytes at the end, or in the order of 8-byte words, hash differently."""
    values = ["", "\0", "\0\0", "a", "a\0", "12345678abcdefgh", "abcdefgh12345678"]

    assert len(set(hashes(values, pa.string()))) == len(values)


def test_floats_hash_by_value() -> None:
    """The width, the sign of zero and the kind of NaN do not change a hash."""
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)
    narrow = pa.array(np.array([1.5, -0.0], np.float16))

    assert hashes([-0.0], pa.float64()) == hashes([0.0], pa.float64())
    assert len(set(stable_hash(pa.array(nans)).tolist())) == 1
    assert stable_hash(narrow).tolist() == hashes([1.5, 0.0], pa.float32()) == hashes([1.5, 0.0], pa.float64())


@pytest.mark.parametrize(
    "type_",
    [pa.decimal32(9, 3), pa.decimal64(18, 12), pa.decimal128(38, 20), pa.decimal256(76, 30)],
    ids=str,
)
def test_decimals_hash_by_their_digits(type_: pa.DataType) -> None:
    """The scale and trailing zeros do not change a hash, also of zero."""
    values = [Decimal("1.5"), Decimal(0), None, Decimal(-100)]

    assert hashes(values, type_) == hashes(values, pa.decimal128(10, 1))


def test_very_small_and_very_large_decimals_hash_by_their_digits() -> None:
    """Arrow writes these decimals with an exponent, which does not change the hash."""
    tiny = [Decimal("1.5E-8"), Decimal("-2E-9")]

    assert hashes(tiny, pa.decimal128(20, 9)) == hashes(tiny, pa.decimal128(20, 15))
    assert hashes([Decimal(1500)], pa.decimal128(10, -2)) == hashes([Decimal(1500)], pa.decimal128(10, 3))
    assert len(set(hashes([*tiny, Decimal(0), Decimal("1.5"), Decimal(15)], pa.decimal128(20, 9)))) == 5


def test_times_hash_by_the_stored_integer() -> None:
    """The unit changes the hash; the zone does not."""
    stamp = [datetime(2024, 1, 31)]  # noqa: DTZ001 - stored without zone
    micros = 1706659200 * 10**6

    assert hashes(stamp, pa.timestamp("us")) == hashes([micros], pa.int64())
    assert stable_hash(pa.array([micros]).cast(pa.timestamp("us", "Asia/Tokyo"))).tolist() == hashes([micros], pa.int64())
    assert hashes(stamp, pa.timestamp("s")) == hashes([1706659200], pa.int64())
    assert hashes([date(1970, 1, 3)], pa.date32()) == hashes([2], pa.int64())
    assert hashes([time(0, 0, 5)], pa.time32("s")) == hashes([5], pa.int64())
    assert hashes([timedelta(seconds=5)], pa.duration("s")) == hashes([5], pa.int64())


def test_nulls_of_all_types_share_one_number() -> None:
    """Nulls of all types have one hash, also nulls inside a dictionary."""
    inside = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))

    for type_ in (pa.null(), pa.int8(), pa.string(), pa.float32(), pa.decimal128(5, 2), pa.date32(), pa.bool_()):
        assert hashes([None, None], type_) == [NULL, NULL]
    assert stable_hash(inside).tolist() == [*hashes(["a"], pa.string()), NULL, NULL]


@given(st.lists(st.text() | st.none()), st.data())
def test_chunks_and_offsets_do_not_change_hashes(values: list[str | None], data: st.DataObject) -> None:
    """The hash of a value does not depend on its position in an array."""
    cut = data.draw(st.integers(0, len(values)))
    whole = pa.array(values, pa.string())
    chunked = pa.chunked_array([whole.slice(0, cut), whole.slice(cut)])
    one_by_one = [number for value in values for number in hashes([value], pa.string())]

    assert stable_hash(whole).tolist() == stable_hash(chunked).tolist() == one_by_one
    assert stable_hash(whole.slice(cut)).tolist() == one_by_one[cut:]


@pytest.mark.parametrize("type_", [pa.int64(), pa.string(), pa.decimal128(5, 2), pa.float64()], ids=str)
def test_empty_arrays_have_no_hashes(type_: pa.DataType) -> None:
    """Empty arrays, and arrays without chunks, give empty arrays of uint64."""
    for empty_array in (pa.array([], type_), pa.chunked_array([], type_)):
        found = stable_hash(empty_array)

        assert (found.dtype, found.shape) == (np.dtype(np.uint64), (0,))


@pytest.mark.parametrize(
    "values",
    [pa.array(range(10_000)), pa.array([f"user-{number}" for number in range(10_000)])],
    ids=["ints", "strings"],
)
def test_hashes_spread_evenly(values: pa.Array) -> None:
    """The hashes of 10,000 neighbours fill ten buckets within five sigma of evenly, by high and by low bits."""
    sigma = (10_000 * 0.1 * 0.9) ** 0.5
    found = stable_hash(values)

    for bucket in (found // np.uint64(2**64 // 10 + 1), found % np.uint64(10)):
        counts = np.bincount(bucket.astype(np.int64), minlength=10)
        assert np.abs(counts - 1000).max() < 5 * sigma
    assert len(np.unique(found)) == 10_000


def test_seeds_give_different_splits() -> None:
    """Two seeds put a value into the same half only as often as chance, within five sigma."""
    one, two = (stable_hash(pa.array(range(10_000)), seed) < np.uint64(2**63) for seed in (0, 1))

    assert abs(int((one == two).sum()) - 5000) < 5 * 50


@pytest.mark.parametrize(
    "type_",
    [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8()), pa.month_day_nano_interval()],
    ids=str,
)
def test_types_without_a_hash_raise(type_: pa.DataType) -> None:
    """A type without a stable hash raises ArgumentError, which names it and what to hash instead."""
    assert not is_hashable(type_)
    with pytest.raises(ArgumentError) as caught:
        stable_hash(pa.nulls(1, type_))

    assert str(caught.value) == (
        f"Values of type {type_} have no stable hash. Hash a column of numbers, strings, bytes or times."
    )
