"""The parser of Thrift's compact protocol: it reads whole or partial structs, and checks all bytes that it reads."""

from __future__ import annotations

import math
import struct
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.parquet import thrift
from penstock._engine.parquet.thrift import Only, ThriftError, Wanted, leaves, parse, parse_start

TRUE, FALSE, BYTE, I64, DOUBLE, BINARY, LIST, MAP, STRUCT = 1, 2, 3, 6, 7, 8, 9, 11, 12


def varint(number: int) -> bytes:
    """Return an unsigned number as the protocol writes it."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def kind(value: Any) -> int:
    """Return the protocol's number for the type of a value."""
    names = {int: I64, float: DOUBLE, bytes: BINARY, list: LIST, dict: STRUCT}
    return (TRUE if value else FALSE) if isinstance(value, bool) else names[type(value)]


def encoded(value: Any) -> bytes:
    """Return a value as the protocol writes it, with integers in 64 bits. A dict of field numbers is a struct."""
    match value:
        case bool():
            return b""
        case int():
            return varint(value << 1 ^ value >> 63 if value < 0 else value << 1)
        case float():
            return struct.pack("<d", value)
        case bytes():
            return varint(len(value)) + value
        case list():
            items = kind(value[0]) if value else 0
            head = bytes([len(value) << 4 | items]) if len(value) < 15 else bytes([15 << 4 | items]) + varint(len(value))
            inside = (bytes([TRUE if item else FALSE]) if isinstance(item, bool) else encoded(item) for item in value)
            return head + b"".join(inside)
    found, last = b"", 0
    for number, field in sorted(value.items()):
        step = number - last
        found += bytes([step << 4 | kind(field)]) if 0 < step < 16 else bytes([kind(field)]) + encoded(number)
        found, last = found + encoded(field), number
    return found + b"\x00"


plain = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=200),
)


def lists(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy of lists whose items have one type."""
    return st.lists(items, max_size=20).map(lambda found: [item for item in found if type(item) is type(found[0])])


def structs(fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy of structs whose field numbers are close together or far apart."""
    return st.dictionaries(st.one_of(st.integers(1, 20), st.integers(1, 32767)), fields, max_size=6)


values = st.recursive(plain, lambda inner: lists(inner) | structs(inner), max_leaves=20)


@given(structs(values))
def test_written_structs_are_read(written: dict[int, Any]) -> None:
    """Parsing a written struct returns all its fields, and where it ends."""
    data = encoded(written)

    assert parse(data) == written
    assert parse_start(data + b"more")[1] == len(data)
    assert parse(memoryview(data)) == written


@given(structs(values), st.data())
def test_fields_that_are_not_wanted_are_skipped(written: dict[int, Any], data: st.DataObject) -> None:
    """Only wanted fields are returned, and fields between them do not change their values."""
    names = data.draw(st.sets(st.sampled_from([*written, 5])))

    assert parse(encoded(written), dict.fromkeys(names)) == {name: written[name] for name in names if name in written}


@given(st.lists(structs(plain), max_size=30), st.sets(st.integers(-1, 31)))
def test_items_of_a_list_are_selected_by_their_places(items: list[dict[int, Any]], places: set[int]) -> None:
    """`Only` reads the list items at the given places. All other items are None."""
    wanted = Only(places=dict.fromkeys(places))

    found = parse(encoded({3: items, 4: 7}), {3: wanted, 4: int})
    assert found == {3: [item if at in places else None for at, item in enumerate(items)], 4: 7}


@given(structs(values))
def test_a_truncated_struct_raises(written: dict[int, Any]) -> None:
    """A struct that is truncated anywhere raises, whether it is read or skipped."""
    data = encoded({1: written})

    for end in range(len(data)):
        for wanted in (None, {1: None, 2: None}, {2: None}):
            with pytest.raises(ThriftError):
                parse(data[:end], wanted)


@given(st.binary(max_size=300), st.sampled_from([None, {2: None}, {1: [{1: int}], 30000: None}, thrift.ELEMENT]))
def test_any_bytes_give_a_struct_or_an_error(data: bytes, wanted: dict[int, Wanted] | None) -> None:
    """Arbitrary bytes give a struct or raise `ThriftError`, and no other error."""
    try:
        assert isinstance(parse(data, wanted), dict)
    except ThriftError:
        return


def test_reading_stops_after_the_last_wanted_field() -> None:
    """Bytes after the last wanted field are not read."""
    data = encoded({1: 5, 2: b"rest"})

    assert parse(data[:2] + b"\xff\xff", {1: int}) == {1: 5}
    assert parse_start(data, {1: int}) == ({1: 5}, 2)


def test_nested_fields_are_selected_by_a_tree() -> None:
    """A tree of wanted fields selects fields of structs in lists in structs."""
    data = encoded({4: [{1: [{3: {7: 5, 12: {1: b"a"}}}], 3: 10}, {3: 20}], 7: 1})

    assert parse(data, {4: [{1: [{3: {7: int}}], 3: int}]}) == {4: [{1: [{3: {7: 5}}], 3: 10}, {3: 20}]}
    assert parse(data, {4: [{1: [{}]}]}) == {4: [{1: [{}]}, {}]}


def test_a_struct_can_be_read_as_its_bytes() -> None:
    """A struct that is wanted as a memoryview is returned as its bytes, up to its end. Other types raise."""
    inner = {1: 5, 3: [{2: b"x"}]}
    data = encoded({4: [inner, inner], 7: 1})

    assert parse(data, {4: [memoryview], 7: int}) == {4: [encoded(inner)] * 2, 7: 1}
    with pytest.raises(ThriftError, match="a value of type int lies where one of type memoryview belongs"):
        parse(data, {7: memoryview})


def test_all_types_are_known() -> None:
    """Types that Parquet does not use, such as small integers, sets and maps, are read and skipped like others."""
    fields = {
        1: (bytes([1 << 4 | BYTE, 0xFE]), -2),
        2: (bytes([1 << 4 | 4, 3]), -2),
        3: (bytes([1 << 4 | 5, 4]), 2),
        4: (bytes([1 << 4 | 10, 2 << 4 | BYTE, 1, 2]), [1, 2]),
        5: (bytes([1 << 4 | MAP, 1, BINARY << 4 | I64, 1]) + b"k\x02", [(b"k", 1)]),
        6: (bytes([1 << 4 | MAP, 0]), []),
        7: (bytes([1 << 4 | LIST, 2 << 4 | TRUE, 1, 2]), [True, False]),
        8: (bytes([1 << 4 | DOUBLE]) + struct.pack("<d", math.pi), math.pi),
    }
    data = b"".join(raw for raw, _ in fields.values()) + b"\x18\x01z\x00"

    assert parse(data) == {**{number: value for number, (_, value) in fields.items()}, 9: b"z"}
    assert parse(data, {9: bytes}) == {9: b"z"}


LONG = [b"\x16" + b"\x80" * 10 + b"\x00\x00", b"\x16" + b"\xff" * 9 + b"\x7f\x00"]


@pytest.mark.parametrize("data", LONG)
def test_numbers_have_64_bits(data: bytes) -> None:
    """A longer number raises if it is wanted. If it is skipped, it does not."""
    with pytest.raises(ThriftError, match="a number has more than 64 bits"):
        parse(data)
    assert parse(data, {99: None}) == {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it ends in the middle of a value"),
        (b"\x18\x05abc\x00", "5 bytes or items are announced where 4 bytes are left"),
        (b"\x19\xf6" + varint(2**60), f"{2**60} bytes or items are announced where 0 bytes are left"),
        (b"\x1b" + varint(2**40) + b"\x66", f"{2**40} bytes or items are announced where 1 bytes are left"),
        (b"\x1d\x00", "there is no type 13"),
        (b"\x19\x1e\x00", "there is no type 14"),
        (b"\x10\x00", "there is no type 0"),
        (b"\x1c" * 70 + b"\x00" * 71, "it is nested more than 64 deep"),
        (b"\x19" + b"\x19" * 70 + b"\x00", "it is nested more than 64 deep"),
        (b"\x17\x00", "it ends in the middle of a value"),
    ],
)
def test_hostile_bytes_raise(data: bytes, message: str) -> None:
    """Each kind of invalid bytes raises with its own message, whether it is read or skipped."""
    for wanted in (None, {99: None}):
        with pytest.raises(ThriftError, match=f"^{message}$"):
            parse(data, wanted)


def test_structs_nest_64_deep() -> None:
    """Structs that are nested 64 deep are read and skipped."""
    deep: dict[int, Any] = {1: 5}
    for _ in range(64):
        deep = {1: deep}

    assert parse(encoded(deep)) == deep
    assert parse(encoded({1: deep[1], 2: 3}), {2: int}) == {2: 3}


@pytest.mark.parametrize(
    ("value", "wanted", "message"),
    [
        (5, bytes, "a value of type int lies where one of type bytes belongs"),
        (True, int, "a value of type bool lies where one of type int belongs"),
        ({1: 5}, int, "a value of type struct lies where one of type int belongs"),
        ([1], {1: int}, "a value of type list lies where one of type struct belongs"),
        (5, {1: int}, "a value of type int lies where one of type struct belongs"),
        (b"", [int], "a value of type bytes lies where one of type list belongs"),
        (1.5, Only(places={}), "a value of type float lies where one of type list belongs"),
        ([1], [bytes], "a value of type int lies where one of type bytes belongs"),
        ([True], [int], "a value of type bool lies where one of type int belongs"),
        ([{1: 1}], [int], "a value of type struct lies where one of type int belongs"),
    ],
)
def test_a_wanted_field_of_another_type_raises(value: Any, wanted: Wanted, message: str) -> None:
    """A wanted field of another type raises, so that callers need not check types."""
    with pytest.raises(ThriftError, match=message):
        parse(encoded({1: value}), {1: wanted})


def test_a_map_cannot_be_read_as_a_struct() -> None:
    """A map that is wanted as a struct raises. Maps are read in whole or not at all."""
    with pytest.raises(ThriftError, match="a value of type map lies where one of type struct belongs"):
        parse(b"\x1b\x00\x00", {1: {}})


def test_an_empty_list_may_have_any_type() -> None:
    """An empty list may have any item type, because some writers do not set it."""
    assert parse(b"\x19\x00\x00", {1: [int]}) == {1: []}
    assert parse(b"\x19\x00\x15\x02\x00", {2: int}) == {2: 1}


@pytest.mark.parametrize("unit", [b"\x1c", b"\x19\x1c", b"\x18\x01\x01", b"\x16\xff\x01", b"\x19\xfc\x7f", b"\x00"])
@pytest.mark.parametrize("wanted", [None, {2: int}, {1: [{1: int}]}])
def test_hostile_bytes_are_read_in_linear_time(unit: bytes, wanted: dict[int, Wanted] | None) -> None:
    """Parsing takes time linear in the number of bytes, for any repeated pattern."""
    start = time.perf_counter()

    with suppress(ThriftError):
        parse(b"\x1c" + unit * (200_000 // len(unit)) + b"\x1d", wanted)

    assert time.perf_counter() - start < 5


def test_leaves_are_found_in_a_schema() -> None:
    """Leaves have paths from the root. They are repeated if any element on the path is repeated."""
    schema = [
        {4: b"root", 5: 3},
        {4: b"id", 1: 2},
        {4: b"s", 5: 2},
        {4: b"a", 1: 1},
        {4: b"b", 1: 1, 3: 2},
        {4: b"l", 5: 1},
        {4: b"list", 5: 1, 3: 2},
        {4: b"element", 1: 6},
    ]

    found, roots = leaves({2: schema})
    paths = [((b"id",), False), ((b"s", b"a"), False), ((b"s", b"b"), True), ((b"l", b"list", b"element"), True)]
    assert [(leaf.path, leaf.repeated) for leaf in found] == paths
    assert [leaf.place for leaf in found] == [0, 1, 2, 3]
    assert roots == {b"id", b"s", b"l"}


def test_a_struct_without_fields_is_a_column_without_leaves() -> None:
    """The name of a struct without fields is returned, so that the column does not count as missing."""
    assert leaves({2: [{4: b"root", 5: 1}, {4: b"empty", 5: 0}]}) == ([], {b"empty"})
    assert leaves({}) == ([], set())


@pytest.mark.parametrize(
    "schema",
    [
        [{5: 1}, {4: b"a", 1: 1}, {4: b"b", 1: 1}],
        [{5: -1}, {4: b"a", 1: 1}],
        [{5: 1}, {1: 1}],
        [{5: 1}, *({4: b"g", 5: 1} for _ in range(200)), {4: b"a", 1: 1}],
    ],
)
def test_a_schema_that_is_no_tree_raises(schema: list[dict[int, Any]]) -> None:
    """Columns beyond the stated number, columns without a name and endless nesting raise."""
    with pytest.raises(ThriftError, match="its schema is no tree of at most 100 levels, with a name for each column"):
        leaves({2: schema})


def test_the_pattern_of_simple_fields_is_compiled_once() -> None:
    """The pattern is compiled once for a process, and matches nothing that the parser rejects."""
    thrift._simple_fields.cache_clear()
    matches = thrift._simple_fields()

    assert thrift._simple_fields() is matches
    number = bytes([1 << 4 | I64]) + varint(300)
    assert matches(number, 0).end() == len(number)
    assert matches(bytes([1 << 4 | MAP]), 0).end() == 0
