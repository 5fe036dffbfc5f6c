"""Headers of AVIF files.

The size is in the properties and in the coded pixels. Decoders allocate memory by the latter, so both are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct, error
from typing import NamedTuple

from penstock.codecs.image.headers import MOST_PARTS, ImageHeader, check_format, damaged, moving

HIGH_DEPTH, MONOCHROME = 0x40, 0x10
SEQUENCE_HEADER = 1
MOST_SEQUENCE_BYTES = 512

BOX = Struct(">I4s").unpack_from
LONG = Struct(">Q").unpack_from
SIZES = Struct(">II").unpack_from
SHORT_SIZES = Struct(">HH").unpack_from


class Bits:
    """A reader of single bits."""

    def __init__(self, data: memoryview) -> None:
        """Store the bytes as one integer."""
        self._number, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int) -> int:
        """Return the next bits as an integer."""
        if count > self._left:
            raise damaged("AVIF", "its pixel data is truncated")
        self._left -= count
        return self._number >> self._left & (1 << count) - 1

    def take_uvlc(self) -> int:
        """Return the next variable-length integer, `uvlc()` in the AV1 specification."""
        zeros = 0
        while zeros < 32 and not self.take(1):  # noqa: PLR2004 - the longest that AV1 has
            zeros += 1
        return self.take(zeros)


class Item(NamedTuple):
    """A part of a file: whether its bytes are in the box `idat`, and the (start, stop) of each extent."""

    in_box: bool
    extents: list[tuple[int, int]]


def header(cell: memoryview) -> ImageHeader:
    """Return the header of an AVIF: the largest size of its parts, and alpha if one of them is alpha."""
    check_format(cell, "AVIF")
    if bytes(cell[8:12]) == b"avis":
        raise moving("AVIF")
    try:
        return _header(cell)
    except (error, IndexError):
        raise damaged("AVIF", "its boxes are truncated") from None


def _header(cell: memoryview) -> ImageHeader:
    meta = {kind: data for name, box in _boxes(cell) if name == b"meta" for kind, data in _boxes(box[4:])}
    properties = [each for name, box in _boxes(meta.get(b"iprp", cell[:0])) if name == b"ipco" for each in _boxes(box)]
    sizes = {SIZES(data, 4) for kind, data in properties if kind == b"ispe"}
    if not sizes:
        raise damaged("AVIF", "it has no size")
    coded = set(_coded_sizes(cell, meta))
    if not coded:
        raise damaged("AVIF", "it has no pixels")
    for size in coded:
        if size not in sizes:
            raise damaged("AVIF", f"its pixels are {size[0]} x {size[1]}, which is not a size in its properties")
    codings = [data[2] for kind, data in properties if kind == b"av1C"]
    alpha = any(kind == b"auxC" and b"alpha" in bytes(data[:64]) for kind, data in properties)
    grey = bool(codings) and all(coding & MONOCHROME for coding in codings)
    deep = any(coding & HIGH_DEPTH for coding in codings)
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    return ImageHeader(height, width, 4 if alpha else 1 if grey else 3, 2 if deep else 1, exact=len(sizes) == 1)


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the kind and the bytes of each box, up to the first truncated one."""
    at = 0
    for _ in range(MOST_PARTS):
        if at + 8 > len(data):
            return
        size, kind = BOX(data, at)
        start = at + 8
        if size == 1:
            size, start = LONG(data, at + 8)[0], at + 16
        stop = len(data) if size == 0 else at + size
        if stop < start or stop > len(data):
            return
        yield kind, data[start:stop]
        at = stop


def _coded_sizes(cell: memoryview, meta: dict[bytes, memoryview]) -> Iterator[tuple[int, int]]:
    """Yield the coded width and height of each part and of each grid of parts."""
    kinds = dict(_kinds(meta.get(b"iinf", cell[:0])))
    for number, item in _items(meta.get(b"iloc", cell[:0])):
        kind = kinds.get(number)
        if kind not in (b"av01", b"grid"):
            continue
        source = meta.get(b"idat", cell[:0]) if item.in_box else cell
        data = _item_bytes(source, item.extents)
        if kind == b"grid":
            yield SIZES(data, 4) if data[1] & 1 else SHORT_SIZES(data, 4)
        else:
            yield from _frame_sizes(data)


def _kinds(data: memoryview) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the kind of each part, from the box `iinf`."""
    for _, entry in _boxes(data[6 if bytes(data[:1]) == b"\0" else 8 :]):
        wide = entry[0] > 2  # noqa: PLR2004 - from the third version on numbers have four bytes
        yield int.from_bytes(entry[4 : 8 if wide else 6], "big"), bytes(entry[10:14] if wide else entry[8:12])


def _items(data: memoryview) -> Iterator[tuple[int, Item]]:
    """Yield the number and the location of each part, from the box `iloc`."""
    if not data:
        return
    version, at = data[0], 6

    def take(size: int) -> int:
        nonlocal at
        at += size
        if at > len(data):
            raise damaged("AVIF", "its boxes are truncated")
        return int.from_bytes(data[at - size : at], "big")

    offset_size, length_size, base_size, index_size = data[4] >> 4, data[4] & 15, data[5] >> 4, data[5] & 15
    wide = version == 2  # noqa: PLR2004 - the version in which numbers have four bytes
    for _ in range(take(4 if wide else 2)):
        number = take(4 if wide else 2)
        method = take(2) & 15 if version else 0
        take(2)
        base, extents = take(base_size), []
        for _ in range(take(2)):
            take(index_size if version else 0)
            start = base + take(offset_size)
            extents.append((start, start + take(length_size)))
        yield number, Item(method == 1, extents)


def _item_bytes(source: memoryview, extents: list[tuple[int, int]]) -> memoryview:
    """Return the bytes of a part, which can have several extents."""
    if sum(stop - start for start, stop in extents) > len(source) or any(stop > len(source) for _, stop in extents):
        raise damaged("AVIF", "its pixels end after the cell")
    if len(extents) == 1:
        return source[slice(*extents[0])]
    return memoryview(b"".join(source[start:stop] for start, stop in extents))


def _frame_sizes(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the largest frame size that each AV1 sequence header allows."""
    at = 0
    for _ in range(MOST_PARTS):
        if at >= len(data):
            return
        flags = data[at]
        at += 2 if flags & 4 else 1
        size = len(data) - at
        if flags & 2:
            size = shift = 0
            while shift < 56:  # noqa: PLR2004 - sizes have at most eight bytes of seven bits
                size |= (data[at] & 127) << shift
                at, shift = at + 1, shift + 7
                if not data[at - 1] & 128:
                    break
        if flags >> 3 & 15 == SEQUENCE_HEADER:
            yield _sequence_size(Bits(data[at : at + min(size, MOST_SEQUENCE_BYTES)]))
        at += size
    raise damaged("AVIF", "it has too many parts")


def _sequence_size(bits: Bits) -> tuple[int, int]:
    """Return the width and the height in a sequence header (AV1 specification, section 5.5)."""
    bits.take(4)
    if bits.take(1):
        bits.take(5)
    else:
        _skip_operating_points(bits)
    width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
    return bits.take(width_bits) + 1, bits.take(height_bits) + 1


def _skip_operating_points(bits: Bits) -> None:
    """Skip timing and operating points, which still images do not use."""
    delay_bits = 0
    if bits.take(1):
        bits.take(64)
        if bits.take(1):
            bits.take_uvlc()
        if bits.take(1):
            delay_bits = bits.take(5) + 1
            bits.take(42)
    has_display_delay = bits.take(1)
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:  # noqa: PLR2004 - higher levels have a tier
            bits.take(1)
        if delay_bits and bits.take(1):
            bits.take(2 * delay_bits + 1)
        if has_display_delay and bits.take(1):
            bits.take(4)
