"""A parser of the Thrift compact protocol, and the structs of parquet.thrift.

A struct becomes a dict by field number, a list becomes a list. A tree says which fields to read, since a footer may describe
100,000 column chunks while a query needs three. A regular expression skips the rest, in a third of the time of a loop.
Parsing takes time linear in the number of bytes, or raises a `ThriftError`, for any bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

MAX_DEPTH = 64  # levels of nested structs, lists and maps
MAX_SCHEMA_DEPTH = 100  # levels; the limit of pyarrow

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_PLAIN = {TRUE: bool, FALSE: bool, BYTE: int, I16: int, I32: int, I64: int, DOUBLE: float, BINARY: bytes}
_LONG = 15  # in the head of a list: its length is in the next bytes
_WIDTHS = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8}  # bytes of an item of a list
_MAX_BYTE = 127  # the largest number in one byte of a varint


# Field numbers in parquet.thrift: of a footer, a row group, a schema element, a column chunk and its statistics.
SCHEMA, TOTAL, GROUPS, ORDERS = 2, 3, 4, 7
CHUNKS, ROWS, COMPRESSED = 1, 3, 6
TYPE, LENGTH, REPETITION, NAME, CHILDREN, CONVERTED, SCALE, LOGICAL = 1, 2, 3, 4, 5, 6, 7, 10
META, PATH, VALUES, SIZE, STATISTICS = 3, 3, 5, 7, 12
OLD_HIGH, OLD_LOW, NULLS, HIGH, LOW = 1, 2, 3, 5, 6
REPEATED = 2


class ThriftError(ValueError):
    """The bytes do not follow the compact protocol, or do not fit the tree.

    Example:
        >>> parse(b"")
        Traceback (most recent call last):
            ...
        penstock._engine.parquet.thrift.ThriftError: it ends in the middle of a value
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """The items of a list to read, by index; the result has None at all other indices.

    Example:
        >>> parse(bytes.fromhex("19350204060000"), {1: Only(places={2: int})})
        {1: [None, None, 3]}
    """

    places: Mapping[int, Wanted]


Plain: TypeAlias = type[bool] | type[int] | type[float] | type[bytes]
Wanted: TypeAlias = Plain | type[memoryview] | Mapping[int, "Wanted"] | list["Wanted"] | Only | None
"""What to read of a value, which must have that type.

A plain type, some fields of a struct, the bytes of a struct (memoryview), a list with what to read of each item, some items
of a list, or everything (None).
"""

_UNIT: Wanted = {2: {1: {}, 2: {}, 3: {}}}
_LOGICAL: dict[int, Wanted] = {number: {} for number in (1, 4, 6, 12, 13, 14, 15)}
_LOGICAL |= {5: {1: int}, 7: _UNIT, 8: _UNIT, 10: {2: bool}}
ELEMENT: dict[int, Wanted] = dict.fromkeys((TYPE, LENGTH, REPETITION, CHILDREN, CONVERTED, SCALE), int)
ELEMENT |= {NAME: bytes, LOGICAL: _LOGICAL}
_BOUNDS: Wanted = {OLD_HIGH: bytes, OLD_LOW: bytes, NULLS: int, HIGH: bytes, LOW: bytes}
CHUNK: Wanted = {META: {TYPE: int, PATH: [bytes], VALUES: int, STATISTICS: _BOUNDS}}


def parse(data: bytes | memoryview, wanted: Mapping[int, Wanted] | None = None) -> dict[int, Any]:
    """Return the fields of a struct.

    Parsing stops after the last wanted field. A map becomes a list of pairs.

    Example:
        >>> parse(bytes.fromhex("150218026869191502 00"))
        {1: 1, 2: b'hi', 3: [1]}
        >>> parse(bytes.fromhex("150218026869191502 00"), {2: bytes})
        {2: b'hi'}
    """
    return parse_start(data, wanted)[0]


def parse_start(data: bytes | memoryview, wanted: Mapping[int, Wanted] | None = None) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct, as `parse` does, and the number of bytes that were parsed.

    Example:
        >>> parse_start(bytes.fromhex("150218026869191502 00"), {1: int})
        ({1: 1}, 2)
    """
    try:
        return _fields(bytes(data), 0, wanted, 0)
    except (IndexError, struct.error):
        raise ThriftError("it ends in the middle of a value") from None


class Leaf(NamedTuple):
    """A leaf column of a file: its index, its names from the root, whether a row may have several values, and its element."""

    place: int
    path: tuple[bytes, ...]
    repeated: bool
    element: dict[int, Any]


def leaves(footer: dict[int, Any]) -> tuple[list[Leaf], set[bytes]]:
    """Return the leaf columns of a file, in the order of the column chunks of its row groups, and the top-level names.

    Example:
        >>> leaves({SCHEMA: [{NAME: b"root", CHILDREN: 1}, {NAME: b"id", TYPE: 1}]})
        ([Leaf(place=0, path=(b'id',), repeated=False, element={4: b'id', 1: 1})], {b'id'})
    """
    columns: list[Leaf] = []
    root, *elements = footer.get(SCHEMA) or [{}]
    groups: list[tuple[tuple[bytes, ...], bool, list[int]]] = [((), False, [root.get(CHILDREN, 0)])]
    roots = set()
    for element in elements:
        while groups and groups[-1][2][0] <= 0:
            groups.pop()
        if not groups or len(groups) > MAX_SCHEMA_DEPTH or NAME not in element:
            raise ThriftError(f"its schema is no tree of at most {MAX_SCHEMA_DEPTH} levels, with a name for each column")
        path, repeated, left = groups[-1]
        left[0] -= 1
        path, repeated = (*path, element[NAME]), repeated or element.get(REPETITION) == REPEATED
        roots.add(path[0])
        if TYPE in element and not element.get(CHILDREN):
            columns.append(Leaf(len(columns), path, repeated, element))
        else:
            groups.append((path, repeated, [element.get(CHILDREN, 0)]))
    return columns, roots


def _fields(data: bytes, at: int, wanted: Mapping[int, Wanted] | None, depth: int) -> tuple[dict[int, Any], int]:
    """Return the wanted fields of a struct, and where it ends; at depth 0, where the last wanted field ends."""
    fields: dict[int, Any] = {}
    number, left = 0, -1 if wanted is None else len(wanted)
    while left:
        head = data[at]
        at += 1
        if not head:
            return fields, at
        kind = head & 15
        if head > 15:  # noqa: PLR2004 - the upper half is the difference of the field numbers
            number += head >> 4
        else:
            number, at = _integer(data, at)
        if wanted is None:
            fields[number], at = _value(data, at, kind, None, depth)
        elif number in wanted:
            fields[number], at = _value(data, at, kind, wanted[number], depth)
            left -= 1
        elif I16 <= kind <= I64:  # as `_skip` does, without the cost of a call
            while data[at] > 127:  # noqa: PLR2004 - more bytes of the number follow
                at += 1
            at += 1
        elif kind not in (TRUE, FALSE):
            at = _skip(data, at, kind, 1, depth)
    return fields, _skip_fields(data, at, depth) if depth else at


def _value(data: bytes, at: int, kind: int, wanted: Wanted, depth: int) -> tuple[Any, int]:
    """Return the value of a field, and where it ends."""
    plain = _PLAIN.get(kind)
    if plain is None:
        return _nested(data, at, kind, wanted, depth + 1)
    if wanted is not None and wanted is not plain:
        raise _misfit(plain.__name__, wanted)
    if plain is int and kind != BYTE:
        return _integer(data, at)
    if kind == BINARY:
        end, at = _size(data, at)
        return data[at:end], end
    if kind == DOUBLE:
        return struct.unpack_from("<d", data, at)[0], at + 8
    return ((data[at] ^ 128) - 128, at + 1) if kind == BYTE else (kind == TRUE, at)


def _nested(data: bytes, at: int, kind: int, wanted: Wanted, depth: int) -> tuple[Any, int]:
    """Return the struct, list or map of a field, and where it ends."""
    _check_depth(depth)
    if kind == STRUCT:
        if wanted is None or isinstance(wanted, Mapping):
            return _fields(data, at, wanted, depth)
        if wanted is memoryview:
            end = _skip_fields(data, at, depth)
            return data[at:end], end
        raise _misfit("struct", wanted)
    if kind in (LIST, SET):
        return _list(data, at, wanted, depth)
    if kind != MAP:
        raise ThriftError(f"there is no type {kind}")
    if wanted is not None:
        raise _misfit("map", wanted)
    keys, values, count, at = _map_head(data, at)
    pairs = []
    for _ in range(count):
        key, at = _item(data, at, keys, None, depth)
        value, at = _item(data, at, values, None, depth)
        pairs.append((key, value))
    return pairs, at


def _list(data: bytes, at: int, wanted: Wanted, depth: int) -> tuple[list[Any], int]:
    """Return the items of a list, and where it ends."""
    kind, count, at = _list_head(data, at)
    if isinstance(wanted, Only):
        return _items_at(data, at, kind, count, wanted, depth)
    if wanted is not None and not isinstance(wanted, list):
        raise _misfit("list", wanted)
    item = None if wanted is None else wanted[0]
    items = []
    for _ in range(count):
        value, at = _item(data, at, kind, item, depth)
        items.append(value)
    return items, at


def _items_at(data: bytes, at: int, kind: int, count: int, wanted: Only, depth: int) -> tuple[list[Any], int]:
    """Return a list with the items at some indices, and where it ends."""
    items: list[Any] = [None] * count
    next_ = 0
    for place in sorted(place for place in wanted.places if 0 <= place < count):
        at = _skip(data, at, kind, place - next_, depth)
        items[place], at = _item(data, at, kind, wanted.places[place], depth)
        next_ = place + 1
    return items, _skip(data, at, kind, count - next_, depth)


def _item(data: bytes, at: int, kind: int, wanted: Wanted, depth: int) -> tuple[Any, int]:
    """Return an item of a list or map, and where it ends."""
    if kind in (TRUE, FALSE) and wanted in (bool, None):
        return data[at] == TRUE, at + 1
    return _value(data, at, kind, wanted, depth)


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the type and number of a list's items, and where they begin."""
    head = data[at]
    count, at = head >> 4, at + 1
    if count == _LONG:
        end, at = _size(data, at)
        count = end - at
    return head & 15, count, at


def _map_head(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Return the types of a map's keys and values, their number, and where they begin."""
    end, at = _size(data, at)
    if end == at:
        return STRUCT, STRUCT, 0, at
    return data[at] >> 4, data[at] & 15, end - at, at + 1


def _size(data: bytes, at: int) -> tuple[int, int]:
    """Return where the bytes after a length end, and where they begin; an item takes at least a byte."""
    size, at = (data[at], at + 1) if data[at] <= _MAX_BYTE else _varint(data, at)
    if size > len(data) - at:
        raise ThriftError(f"{size} bytes or items are announced where {len(data) - at} bytes are left")
    return at + size, at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag number, and where it ends."""
    value, at = (data[at], at + 1) if data[at] <= _MAX_BYTE else _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of at most 64 bits, and where it ends."""
    value = shift = 0
    while (byte := data[at]) > _MAX_BYTE:
        value |= (byte & _MAX_BYTE) << shift
        at, shift = at + 1, shift + 7
        if shift == 70:  # noqa: PLR2004 - ten bytes hold 64 bits
            raise ThriftError("a number has more than 64 bits")
    value |= byte << shift
    if value >> 64:
        raise ThriftError("a number has more than 64 bits")
    return value, at + 1


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ThriftError(f"it is nested more than {MAX_DEPTH} deep")


def _misfit(found: str, wanted: Wanted) -> ThriftError:
    names: dict[type, str] = {Mapping: "struct", list: "list", Only: "list"}
    belongs = (
        wanted.__name__ if isinstance(wanted, type) else next(name for of, name in names.items() if isinstance(wanted, of))
    )
    return ThriftError(f"a value of type {found} lies where one of type {belongs} belongs")


def _skip_fields(data: bytes, at: int, depth: int) -> int:
    """Return where a struct ends, given where one of its fields begins."""
    _check_depth(depth)
    simple = _simple_fields()
    while head := data[at := simple(data, at).end()]:
        at = at + 1 if head > 15 else _varint(data, at + 1)[1]  # noqa: PLR2004 - else the field's number follows
        if (kind := head & 15) not in (TRUE, FALSE):
            at = _skip(data, at, kind, 1, depth)
    return at + 1


def _skip(data: bytes, at: int, kind: int, count: int, depth: int) -> int:
    """Return where so many values of one type end."""
    if kind == STRUCT:
        simple = _simple_fields()
        for _ in range(count):
            at = simple(data, at).end()
            at = _skip_fields(data, at, depth + 1) if data[at] else at + 1
    elif I16 <= kind <= I64:
        for _ in range(count):
            while data[at] > 127:  # noqa: PLR2004 - more bytes of the number follow
                at += 1
            at += 1
    elif kind == BINARY:
        for _ in range(count):
            at = _size(data, at)[0]
    elif kind in _WIDTHS:
        at += count * _WIDTHS[kind]
    else:
        for _ in range(count):
            at = _skip_nested(data, at, kind, depth + 1)
    return at


def _skip_nested(data: bytes, at: int, kind: int, depth: int) -> int:
    """Return where a list or map ends."""
    _check_depth(depth)
    if kind in (LIST, SET):
        items, count, at = _list_head(data, at)
        return _skip(data, at, items, count, depth)
    if kind != MAP:
        raise ThriftError(f"there is no type {kind}")
    keys, values, count, at = _map_head(data, at)
    for _ in range(count):
        at = _skip(data, _skip(data, at, keys, 1, depth), values, 1, depth)
    return at


@cache
def _simple_fields() -> Callable[[bytes, int], re.Match[bytes]]:
    """Return a function that matches all simple fields: short ones, nested at most three deep, as in a column chunk.

    The expression never backtracks, so it takes time linear in the bytes.
    """
    varint = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
    binary = b"(?:" + b"|".join(re.escape(bytes([size])) + b".{%d}" % size for size in range(64)) + b")"
    ints = _heads(I16, I32, I64) + varint
    plain = b"|".join([ints, _heads(BINARY) + binary, _heads(TRUE, FALSE), _heads(BYTE) + b".", _heads(DOUBLE) + b".{8}"])
    items = {I32: (varint, 4), I64: (varint, 4), BINARY: (binary, 3), STRUCT: (b"(?>" + ints + b")*+\x00", 4)}
    lists = _heads(LIST) + b"(?:" + b"|".join(_items(kind, *of) for kind, of in items.items()) + b")"
    fields = b"(?>" + plain + b"|" + lists + b")*+"
    for _ in range(2):
        fields = b"(?>" + plain + b"|" + lists + b"|" + _heads(STRUCT) + fields + b"\x00)*+"
    return re.compile(fields, re.DOTALL).match  # type: ignore[return-value] # at worst it matches no field


def _heads(*kinds: int) -> bytes:
    """Return a pattern of the first byte of a field of these types, if its number is less than 16 after the last."""
    return b"[" + b"".join(re.escape(bytes([step << 4 | kind])) for step in range(1, 16) for kind in kinds) + b"]"


def _items(kind: int, item: bytes, max_items: int) -> bytes:
    """Return a pattern of a list of at most so many items, after its field's first byte."""
    pattern = re.escape(bytes([max_items << 4 | kind]))
    for count in range(max_items - 1, -1, -1):
        pattern = b"(?:" + pattern + item + b"|" + re.escape(bytes([count << 4 | kind])) + b")"
    return pattern
