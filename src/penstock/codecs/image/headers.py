"""What an image says of itself before it is decoded: its format, its size, its channels and its depth."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error, unpack_from
from typing import NamedTuple

from penstock.schema import Field

MOST_PARTS = 4096
"""How many parts of a file are looked at for its size: more are made to keep a reader busy."""

MOST_SCANS = 100
"""In how many scans a progressive JPEG may come; writers make about ten."""

MAGIC = (
    ("PNG", 0, b"\x89PNG\r\n\x1a\n"),
    ("JPEG", 0, b"\xff\xd8\xff"),
    ("WebP", 8, b"WEBP"),
    ("AVIF", 4, b"ftypavif"),
    ("AVIF", 4, b"ftypavis"),
    ("HEIF", 4, b"ftyp"),
    ("GIF", 0, b"GIF8"),
    ("TIFF", 0, b"II*\0"),
    ("TIFF", 0, b"MM\0*"),
    ("JPEG 2000", 0, b"\0\0\0\x0cjP  "),
    ("JPEG XL", 0, b"\0\0\0\x0cJXL "),
    ("JPEG XL", 0, b"\xff\x0a"),
    ("BMP", 0, b"BM"),
    ("NumPy's .npy", 0, b"\x93NUMPY"),
    ("NumPy's .npz", 0, b"PK\x03\x04"),
)

JPEG_FRAMES = frozenset(range(0xFFC0, 0xFFD0)) - {0xFFC4, 0xFFC8, 0xFFCC}
JPEG_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
JPEG_SCAN = b"\xff\xda"
JPEG_ALONE = frozenset({0xFF01, *range(0xFFD0, 0xFFD9)})
JPEG_PIXELS = frozenset({0xFFD9, 0xFFDA})
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 4, 6: 4}

UPRIGHT, SIDEWAYS = 1, range(5, 9)
"""The EXIF orientation of an image that lies as it was taken, and those that swap height and width."""

EXIF, ORIENTATION, JPEG_APP1 = b"Exif\0\0", 0x0112, 0xFFE1
TIFF_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
TIFF_WHOLE = {1: "B", 3: "H", 4: "I"}
"""The types of TIFF, in which EXIF is stored, that are whole numbers."""

RIFF = Struct("<4sI").unpack_from
SEGMENT = Struct(">HH").unpack_from
FRAME = Struct(">HHB").unpack_from
CHUNK = Struct(">I4s").unpack_from
IHDR = Struct(">I4sIIBB").unpack_from
LITTLE = Struct("<I").unpack_from
PAIR = Struct("<HH").unpack_from


class ImageError(ValueError):
    """What is wrong with an image, in three parts; whoever knows its row tells it as a `CellProblem`."""


class Header(NamedTuple):
    """What an image claims to be.

    Attributes:
        height: Its rows of pixels.
        width: Its columns of pixels.
        channels: 1 for grey, 3 for colours, 4 with alpha.
        itemsize: The bytes of one value, decoded.
        exact: Whether the size is that of the image for sure; an AVIF file tells those of its parts too.
    """

    height: int
    width: int
    channels: int
    itemsize: int = 1
    exact: bool = True


def jpeg(cell: memoryview) -> Header:
    """Return what a JPEG claims; four channels of ink count as the three that they are decoded to."""
    at = jpeg_frame(cell)
    if _is_progressive(cell, at) and bytes(cell).count(JPEG_SCAN) > MOST_SCANS:
        raise damaged("JPEG", f"it has more than {MOST_SCANS} scans, each of which takes as long as an image")
    height, width, parts = FRAME(cell, at + 5)
    return Header(height, width, 1 if parts == 1 else 3)


def jpeg_begin(cell: memoryview) -> bytes:
    """Return the bytes of a JPEG that tell all that `jpeg` looks at, or none where it looks at more."""
    at = jpeg_frame(cell)
    return b"" if _is_progressive(cell, at) else bytes(cell[: at + 10])


def _is_progressive(cell: memoryview, frame: int) -> bool:
    """Return whether a JPEG can hold a scan of a whole image in a few bytes."""
    return cell[frame + 1] in JPEG_PROGRESSIVE


def jpeg_frame(cell: memoryview) -> int:
    """Return where the frame header of a JPEG begins, which holds its size.

    The segments before it are stepped over, which takes about half as long as asking libjpeg.
    """
    at = 2
    try:
        for _ in range(MOST_PARTS):
            marker, length = SEGMENT(cell, at)
            if marker in JPEG_FRAMES:
                FRAME(cell, at + 5)
                return at
            if marker < 0xFF00 or marker in JPEG_PIXELS:  # noqa: PLR2004 - every marker begins with FF
                break
            at += 1 if marker == 0xFFFF else 2 if marker in JPEG_ALONE else 2 + length  # noqa: PLR2004 - FF may be repeated
    except error:
        pass
    expect(cell, "JPEG")
    raise damaged("JPEG", "no frame header was found")


def png(cell: memoryview) -> Header:
    """Return what a PNG claims; a transparent colour counts as alpha."""
    expect(cell, "PNG")
    try:
        length, kind, width, height, depth, colour = IHDR(cell, 8)
        if (length, kind) != (13, b"IHDR") or colour not in PNG_CHANNELS:
            raise damaged("PNG", "it does not begin with a header chunk that PNG knows")
        channels = 4 if _png_has_transparency(cell) else PNG_CHANNELS[colour]
    except error:
        raise damaged("PNG", "its last chunk is missing") from None
    return Header(height, width, channels, 2 if depth == 16 else 1)  # noqa: PLR2004 - PNG's depths are 1 to 16 bits


def _png_has_transparency(cell: memoryview) -> bool:
    """Return whether one of the chunks tells which colours are transparent.

    All chunks are stepped through: OpenCV reserves as many bytes as a chunk says that it has, which may be 4 GiB.
    """
    at, found = 33, False
    for _ in range(MOST_PARTS + len(cell) // 512):
        length, kind = CHUNK(cell, at)
        at += 12 + length
        if at > len(cell):
            raise damaged("PNG", f"its chunk {kind!r} says that it has {length} bytes, which are more than there are")
        if kind == b"acTL":
            raise moving("PNG")
        if kind == b"IEND":
            return found
        found = found or kind == b"tRNS"
    raise damaged("PNG", "it has more chunks than a PNG of its bytes has")


def webp(cell: memoryview) -> Header:
    """Return what a WebP claims; it has no grey."""
    expect(cell, "WebP")
    try:
        whole = LITTLE(cell, 4)[0] + 8
        if whole > len(cell):
            raise damaged("WebP", f"it has {len(cell)} bytes and says that it has {whole}")
        kind, flags = bytes(cell[12:16]), cell[20]
        if kind == b"VP8X" and flags & 0x02:
            raise moving("WebP")
        if kind == b"VP8X":
            return Header((LITTLE(cell, 26)[0] >> 8) + 1, (LITTLE(cell, 23)[0] >> 8) + 1, 4 if flags & 0x10 else 3)
        if kind == b"VP8L":
            bits = LITTLE(cell, 21)[0]
            return Header((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, 4 if bits >> 28 & 1 else 3)
        if kind == b"VP8 ":
            width, height = PAIR(cell, 26)
            return Header(height & 0x3FFF, width & 0x3FFF, 3)
    except (error, IndexError):
        raise damaged("WebP", "it ends within its header") from None
    raise damaged("WebP", f"it begins with a chunk {kind!r}, which WebP does not know")


def turned(header: Header, orientation: int) -> Header:
    """Return what an image claims to be once it is turned as its EXIF orientation says."""
    return header._replace(height=header.width, width=header.height) if orientation in SIDEWAYS else header


def jpeg_orientation(cell: memoryview) -> int:
    """Return the EXIF orientation of a JPEG, from 1 to 8; 1, which is upright, where it has none or a damaged one."""
    at = 2
    try:
        for _ in range(MOST_PARTS):
            marker, length = SEGMENT(cell, at)
            if marker < 0xFF00 or marker in JPEG_PIXELS:  # noqa: PLR2004 - every marker begins with FF
                break
            if marker == JPEG_APP1 and bytes(cell[at + 4 : at + 10]) == EXIF:
                return _orientation(cell[at + 4 : at + 2 + length])
            at += 1 if marker == 0xFFFF else 2 if marker in JPEG_ALONE else 2 + length  # noqa: PLR2004 - FF may be repeated
    except error:
        pass
    return UPRIGHT


def png_orientation(cell: memoryview) -> int:
    """Return the same of a PNG."""
    at = 8
    try:
        for _ in range(MOST_PARTS + len(cell) // 512):
            length, kind = CHUNK(cell, at)
            if kind == b"eXIf":
                return _orientation(cell[at + 8 : at + 8 + length])
            at += 12 + length
    except error:
        pass
    return UPRIGHT


def webp_orientation(cell: memoryview) -> int:
    """Return the same of a WebP."""
    at = 12
    try:
        for _ in range(MOST_PARTS):
            kind, length = RIFF(cell, at)
            if kind == b"EXIF":
                return _orientation(cell[at + 8 : at + 8 + length])
            at += 8 + length + length % 2
    except error:
        pass
    return UPRIGHT


def _orientation(exif: memoryview) -> int:
    """Return the orientation that EXIF data says, which may be anything."""
    tiff = exif[len(EXIF) :] if bytes(exif[: len(EXIF)]) == EXIF else exif
    order = TIFF_ORDERS.get(bytes(tiff[:4]))
    if order is None:
        return UPRIGHT
    try:
        (first,) = unpack_from(f"{order}I", tiff, 4)
        (entries,) = unpack_from(f"{order}H", tiff, first)
        for at in range(first + 2, first + 2 + 12 * entries, 12):
            tag, kind, values = unpack_from(f"{order}HHI", tiff, at)
            if tag == ORIENTATION:
                (found,) = unpack_from(order + TIFF_WHOLE.get(kind, "H"), tiff, at + 8)
                return found if kind in TIFF_WHOLE and values == 1 and found in range(1, 9) else UPRIGHT
    except error:
        pass
    return UPRIGHT


def look(cell: memoryview) -> str | None:
    """Return the format that bytes look like, or None where we know none."""
    begin = bytes(cell[:32])
    if begin[4:8] == b"ftyp" and b"avif" in bytes(cell[8:64]):
        return "AVIF"
    return next((name for name, at, magic in MAGIC if begin.startswith(magic, at)), None)


def expect(cell: memoryview, title: str) -> None:
    """Refuse bytes that do not begin as images of a format do."""
    if len(cell) == 0:
        raise ImageError(f"it is empty, and {title} was expected. Write null where there is no image.")
    found = look(cell)
    if found is None:
        begin = bytes(cell[:8]).hex(" ")
        msg = f"it begins with {begin}, which is no image that we know, and {title} was expected. Check what wrote the cell."
        raise ImageError(msg)
    if found != title:
        msg = (
            f"it looks like {found}, and the schema says {title}. Write it anew, or adopt a schema with its codec: "
            "penstock.adopt(url, schema)."
        )
        raise ImageError(msg)


def damaged(title: str, why: str) -> ImageError:
    """Return what to say of an image that is broken or cut off."""
    return ImageError(f"it is damaged or cut off: {why}. A whole {title} was expected. Write the cell anew.")


def moving(title: str) -> ImageError:
    """Return what to say of an animation."""
    return ImageError(
        f"it is an animation, of which one image alone would be kept. A still {title} was expected. Write it anew."
    )


def differs(field: Field, header: Header, why: str = "") -> ImageError:
    """Return what to say of an image that is none of its field."""
    size = (header.height, header.width)
    shape = size if header.channels == 1 and len(field.shape) == len(size) else (*size, header.channels)
    problem = f"it holds uint{8 * header.itemsize} {shape}, and the schema says {field.dtype} {field.shape}{why}. "
    return ImageError(problem + "Write it anew, or adopt a schema that fits: penstock.adopt(url, schema).")


def check_bytes(header: Header, channels: int, max_cell_bytes: int) -> None:
    """Refuse an image that would take more than is allowed, before any of it is decoded."""
    claimed = header.height * header.width * max(channels, header.channels) * header.itemsize
    if claimed > max_cell_bytes:
        msg = (
            f"it claims to be {header.width} x {header.height} pixels, which is {claimed} bytes decoded, and a cell may take "
            f"{max_cell_bytes}. If the table can be trusted, allow more: .using(max_cell_bytes={claimed})."
        )
        raise ImageError(msg)


def check_kind(field: Field, header: Header, channels: int | None) -> None:
    """Refuse an image whose depth is not the field's, or which would lose colours or alpha in becoming one of the field."""
    if header.itemsize != field.dtype.itemsize:
        raise differs(field, header)
    if channels is not None and header.channels > channels:
        lost = "alpha" if header.channels == 4 else "colours"  # noqa: PLR2004 - red, green, blue and alpha
        raise differs(field, header, f": its {lost} would be lost")


def check_size(field: Field, header: Header, size: Sequence[int | None]) -> None:
    """Refuse an image of another size than one, where None stands for any."""
    height, width = size
    if header.exact and (height not in (None, header.height) or width not in (None, header.width)):
        raise differs(field, header)
