"""Headers of images, read before anything is decoded: format, size, channels, depth and orientation."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error, unpack_from
from typing import NamedTuple

from penstock.schema import Field

MOST_PARTS = 4096
"""The number of parts of a file that are searched for its size; only a hostile file has more."""

MOST_SCANS = 100
"""The limit on the scans of a progressive JPEG; encoders write about ten."""

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
"""The EXIF orientation that changes nothing, and those that swap height and width."""

EXIF, ORIENTATION, JPEG_APP1 = b"Exif\0\0", 0x0112, 0xFFE1
TIFF_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
TIFF_WHOLE = {1: "B", 3: "H", 4: "I"}
"""The integer types of TIFF, the format of EXIF data."""

RIFF = Struct("<4sI").unpack_from
SEGMENT = Struct(">HH").unpack_from
FRAME = Struct(">HHB").unpack_from
CHUNK = Struct(">I4s").unpack_from
IHDR = Struct(">I4sIIBB").unpack_from
LITTLE = Struct("<I").unpack_from
PAIR = Struct("<HH").unpack_from


class ImageError(ValueError):
    """Why an image cannot be used; callers that know its row raise it as a `CellProblem`."""


class ImageHeader(NamedTuple):
    """The size and format that an image declares.

    Attributes:
        height: Rows of pixels.
        width: Columns of pixels.
        channels: 1 for grey, 3 for colours, 4 with alpha.
        itemsize: Bytes of one decoded value.
        exact: Whether the size is certain; an AVIF file also declares the sizes of its parts.
    """

    height: int
    width: int
    channels: int
    itemsize: int = 1
    exact: bool = True


def jpeg(cell: memoryview) -> ImageHeader:
    """Return the header of a JPEG; CMYK counts as the three channels that it is decoded to."""
    at = jpeg_frame(cell)
    if _is_progressive(cell, at) and bytes(cell).count(JPEG_SCAN) > MOST_SCANS:
        raise damaged("JPEG", f"it has more than {MOST_SCANS} scans, each of which takes as long as an image")
    height, width, parts = FRAME(cell, at + 5)
    return ImageHeader(height, width, 1 if parts == 1 else 3)


def jpeg_prefix(cell: memoryview) -> bytes:
    """Return the first bytes of a JPEG, up to all that `jpeg` reads; no bytes for a progressive one, which it reads whole."""
    at = jpeg_frame(cell)
    return b"" if _is_progressive(cell, at) else bytes(cell[: at + 10])


def _is_progressive(cell: memoryview, frame: int) -> bool:
    """Return whether a JPEG is progressive, so that a few bytes can hold a scan of the whole image."""
    return cell[frame + 1] in JPEG_PROGRESSIVE


def jpeg_frame(cell: memoryview) -> int:
    """Return the offset of the frame header of a JPEG, which holds its size.

    This takes about half the time of a call of libjpeg.
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
    check_format(cell, "JPEG")
    raise damaged("JPEG", "it has no frame header")


def png(cell: memoryview) -> ImageHeader:
    """Return the header of a PNG; a transparent colour counts as alpha."""
    check_format(cell, "PNG")
    try:
        length, kind, width, height, depth, colour = IHDR(cell, 8)
        if (length, kind) != (13, b"IHDR") or colour not in PNG_CHANNELS:
            raise damaged("PNG", "it does not start with a valid header chunk")
        channels = 4 if _png_has_transparency(cell) else PNG_CHANNELS[colour]
    except error:
        raise damaged("PNG", "its last chunk is missing") from None
    return ImageHeader(height, width, channels, 2 if depth == 16 else 1)  # noqa: PLR2004 - PNG's depths are 1 to 16 bits


def _png_has_transparency(cell: memoryview) -> bool:
    """Return whether a chunk declares transparent colours.

    This checks the length of all chunks: OpenCV allocates the declared length of a chunk, which can be 4 GiB.
    """
    at, transparent = 33, False
    for _ in range(MOST_PARTS + len(cell) // 512):
        length, kind = CHUNK(cell, at)
        at += 12 + length
        if at > len(cell):
            raise damaged("PNG", f"its chunk {kind!r} declares {length} bytes, which is more than the cell has")
        if kind == b"acTL":
            raise moving("PNG")
        if kind == b"IEND":
            return transparent
        transparent = transparent or kind == b"tRNS"
    raise damaged("PNG", "it has too many chunks")


def webp(cell: memoryview) -> ImageHeader:
    """Return the header of a WebP, which has no grey."""
    check_format(cell, "WebP")
    try:
        whole = LITTLE(cell, 4)[0] + 8
        if whole > len(cell):
            raise damaged("WebP", f"it has {len(cell)} bytes and declares {whole}")
        kind, flags = bytes(cell[12:16]), cell[20]
        if kind == b"VP8X" and flags & 0x02:
            raise moving("WebP")
        if kind == b"VP8X":
            return ImageHeader((LITTLE(cell, 26)[0] >> 8) + 1, (LITTLE(cell, 23)[0] >> 8) + 1, 4 if flags & 0x10 else 3)
        if kind == b"VP8L":
            bits = LITTLE(cell, 21)[0]
            return ImageHeader((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, 4 if bits >> 28 & 1 else 3)
        if kind == b"VP8 ":
            width, height = PAIR(cell, 26)
            return ImageHeader(height & 0x3FFF, width & 0x3FFF, 3)
    except (error, IndexError):
        raise damaged("WebP", "it ends inside its header") from None
    raise damaged("WebP", f"it starts with a chunk {kind!r}, which WebP does not have")


def oriented(header: ImageHeader, orientation: int) -> ImageHeader:
    """Return the header of an image after its EXIF orientation is applied."""
    return header._replace(height=header.width, width=header.height) if orientation in SIDEWAYS else header


def jpeg_orientation(cell: memoryview) -> int:
    """Return the EXIF orientation of a JPEG, from 1 to 8; 1 (upright) if it has no valid one."""
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
    """Return the EXIF orientation of a PNG; 1 if it has no valid one."""
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
    """Return the EXIF orientation of a WebP; 1 if it has no valid one."""
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
    """Return the orientation in EXIF data; 1 if it has no valid one."""
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
                (value,) = unpack_from(order + TIFF_WHOLE.get(kind, "H"), tiff, at + 8)
                return value if kind in TIFF_WHOLE and values == 1 and value in range(1, 9) else UPRIGHT
    except error:
        pass
    return UPRIGHT


def detect_format(cell: memoryview) -> str | None:
    """Return the file format that bytes start as, or None if it is not known."""
    prefix = bytes(cell[:32])
    if prefix[4:8] == b"ftyp" and b"avif" in bytes(cell[8:64]):
        return "AVIF"
    return next((name for name, at, magic in MAGIC if prefix.startswith(magic, at)), None)


def check_format(cell: memoryview, title: str) -> None:
    """Check that bytes start as images of a format do."""
    if len(cell) == 0:
        raise ImageError(f"it is empty; expected a {title}. Write null for a missing image.")
    detected = detect_format(cell)
    if detected is None:
        prefix = bytes(cell[:8]).hex(" ")
        msg = f"it starts with {prefix}, which is not a known image format; expected {title}. Check what wrote the cell."
        raise ImageError(msg)
    if detected != title:
        msg = (
            f"it looks like {detected}, and the schema says {title}. Rewrite it, or adopt a schema with its codec: "
            "penstock.adopt(url, schema)."
        )
        raise ImageError(msg)


def damaged(title: str, why: str) -> ImageError:
    """Return the error for a damaged or truncated image."""
    return ImageError(f"it is damaged or truncated: {why}; expected a complete {title}. Rewrite the cell.")


def moving(title: str) -> ImageError:
    """Return the error for an animation."""
    return ImageError(f"it is an animation; expected a {title} with one image. Rewrite it as one image.")


def mismatch(field: Field, header: ImageHeader, why: str = "") -> ImageError:
    """Return the error for an image that does not fit its field."""
    size = (header.height, header.width)
    shape = size if header.channels == 1 and len(field.shape) == len(size) else (*size, header.channels)
    problem = f"it holds uint{8 * header.itemsize} {shape}, and the schema says {field.dtype} {field.shape}{why}. "
    return ImageError(problem + "Rewrite it, or adopt a schema that fits: penstock.adopt(url, schema).")


def check_bytes(header: ImageHeader, channels: int, max_cell_bytes: int) -> None:
    """Check the decoded size of an image against the limit, before anything is decoded."""
    decoded_bytes = header.height * header.width * max(channels, header.channels) * header.itemsize
    if decoded_bytes > max_cell_bytes:
        msg = (
            f"it declares {header.width} x {header.height} pixels, which is {decoded_bytes} bytes decoded; the limit for a "
            f"cell is {max_cell_bytes}. If the table can be trusted, raise it: .using(max_cell_bytes={decoded_bytes})."
        )
        raise ImageError(msg)


def check_kind(field: Field, header: ImageHeader, channels: int | None) -> None:
    """Check that an image has the field's depth, and that its colours and alpha fit into the field's channels."""
    if header.itemsize != field.dtype.itemsize:
        raise mismatch(field, header)
    if channels is not None and header.channels > channels:
        lost = "alpha" if header.channels == 4 else "colours"  # noqa: PLR2004 - red, green, blue and alpha
        raise mismatch(field, header, f": its {lost} would be lost")


def check_size(field: Field, header: ImageHeader, size: Sequence[int | None]) -> None:
    """Check the size of an image; None stands for any height or width."""
    height, width = size
    if header.exact and (height not in (None, header.height) or width not in (None, header.width)):
        raise mismatch(field, header)
