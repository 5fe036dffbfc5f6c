"""Bytes that are no image, or not the expected one, raise clear errors, and are not decoded at any cost."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._blobs import Blobs
from penstock.codecs import Avif, Jpeg, Png, Webp
from penstock.schema import CellProblem, Field

cv2 = pytest.importorskip("cv2", reason="images need OpenCV")
pytest.importorskip("simplejpeg", reason="JPEG needs simplejpeg")
Image = pytest.importorskip("PIL.Image", reason="Pillow writes images of other formats")

HAS_AVIF = cv2.haveImageWriter("image.avif")
EVERY = [Png(), Jpeg(), Webp(), *([Avif()] if HAS_AVIF else [])]
FIELD = Field("image", "uint8", (24, 32, 3))
OPEN = Field("image", "uint8", (None, None, None))
LIMIT = 1 << 20
few_examples = settings(max_examples=60, deadline=None)


def smooth(height: int, width: int, channels: int = 3) -> Any:
    """Return an image without edges."""
    down, right = np.mgrid[:height, :width]
    return np.stack([40 * channel + down + right for channel in range(channels)], -1).astype(np.uint8)


def blobs(*cells: bytes | None, max_cell_bytes: int = LIMIT) -> Blobs:
    """Return cells as a batch with a limit on the size of a cell."""
    batch = Blobs.of(pa.array(cells, pa.binary()))
    return Blobs(
        buffers=batch.buffers,
        source=batch.source,
        start=batch.start,
        stop=batch.stop,
        valid=batch.valid,
        max_cell_bytes=max_cell_bytes,
    )


def problem(codec: Any, cell: bytes) -> str:
    """Return the error message of a bad cell, which is the same for each way of decoding a batch."""
    good = codec.encode(FIELD, smooth(24, 32))
    cells = blobs(good, None, cell)
    out = np.zeros((3, 24, 32, 3), np.uint8)
    ways: list[Callable[[], Any]] = [
        lambda: codec.decode_each(FIELD, cells),
        lambda: codec.decode_resized(FIELD, cells, out),
        lambda: codec.decode_into(FIELD, cells, out),
    ]
    messages = set()
    for way in ways:
        with pytest.raises(CellProblem) as caught:
            way()
        assert caught.value.row == 2
        messages.add(str(caught.value))
    with pytest.raises(CellProblem):
        codec.decode(FIELD, memoryview(cell))
    assert len(messages) == 1
    return messages.pop()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def box(kind: bytes, data: bytes) -> bytes:
    """Return a box of an AVIF."""
    return struct.pack(">I", 8 + len(data)) + kind + data


def png(width: int, height: int, depth: int = 8) -> bytes:
    """Return a PNG of few bytes that declares a size."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", zlib.compress(b"\0" * 100)) + png_chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    """Return a JPEG of few bytes that declares a size."""
    cell = bytearray(Jpeg().encode(FIELD, smooth(24, 32)))
    frame = cell.index(b"\xff\xc0")
    cell[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(cell)


def webp(width: int, height: int) -> bytes:
    """Return a WebP of few bytes that declares a size."""
    sizes = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    body = b"WEBPVP8X" + struct.pack("<II", 10, 0) + sizes + Webp().encode(FIELD, smooth(24, 32))[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def avif(
    *sizes: tuple[int, int], pixels: bytes | None = None, coding: bytes = b"\x81\x00\x0c\x00", kind: bytes = b"av01"
) -> bytes:
    """Return an AVIF of few bytes whose properties declare sizes. By default its pixels declare the last of them."""
    pixels = av1(*sizes[-1]) if pixels is None else pixels
    spread = b"".join(box(b"ispe", struct.pack(">III", 0, *size)) for size in sizes) + box(b"av1C", coding)
    entry = box(b"infe", b"\2\0\0\0" + struct.pack(">HH", 1, 0) + kind + b"\0")
    begin = box(b"ftyp", b"avif" + bytes(4) + b"avifmif1miaf")

    def meta(start: int) -> bytes:
        place = bytes(4) + b"\x44\0" + struct.pack(">HHHHII", 1, 1, 0, 1, start, len(pixels))
        parts = [box(b"iloc", place), box(b"iinf", bytes(4) + b"\0\1" + entry), box(b"iprp", box(b"ipco", spread))]
        return box(b"meta", bytes(4) + box(b"hdlr", bytes(24)) + b"".join(parts))

    return begin + meta(len(begin) + len(meta(0)) + 8) + box(b"mdat", pixels)


def av1(width: int, height: int, *, still: bool = True) -> bytes:
    """Return the sequence header of AV1 pixels: the short one of a still image, or one with timing and levels."""
    timing = "1" + "0" * 64 + "1" + "00101" + "1" + "00111" + "0" * 42 + "1" + "00001"
    levels = ("0" * 12 + "01000" + "1" + "1" + "0" * 17 + "1" + "0000") * 2
    text = (
        "000" + ("1" + "1" + "00000" if still else "0" + "0" + timing + levels) + f"11111111{width - 1:016b}{height - 1:016b}"
    )
    text += "1" * (-len(text) % 8) + "1" * 8
    data = int(text, 2).to_bytes(len(text) // 8, "big")
    return b"\x12\0\x0a" + bytes([len(data)]) + data + b"\x32\1\xff"


@pytest.mark.parametrize(
    ("codec", "cell", "size"),
    [
        (Png(), png(60000, 60000), 60000 * 60000 * 3),
        (Png(), png(60000, 60000, 16), 60000 * 60000 * 3 * 2),
        (Jpeg(), jpeg(60000, 60000), 60000 * 60000 * 3),
        (Jpeg(shrink_to=(8, 8)), jpeg(60000, 60000), 60000 * 60000 * 3),
        (Webp(), webp(60000, 60000), 60000 * 60000 * 3),
        (Avif(), avif((24, 32), (60000, 60000)), 60000 * 60000 * 3),
        (Avif(), avif((60000, 60000), coding=b"\x81\x00\x4c\x00"), 60000 * 60000 * 3 * 2),
    ],
)
def test_a_small_file_that_claims_to_be_huge_is_not_decoded(codec: Any, cell: bytes, size: int) -> None:
    """The declared size is compared with the limit before decoding. The error says how to raise the limit."""
    with pytest.raises(CellProblem) as caught:
        codec.decode_each(OPEN, blobs(cell))

    assert str(caught.value) == (
        f"it declares 60000 x 60000 pixels, which is {size} bytes decoded; the limit for a cell is {LIMIT}. If the table "
        f"can be trusted, raise it: .using(max_cell_bytes={size})."
    )


@pytest.mark.parametrize(
    ("codec", "cell"), [(Png(), png(60000, 60000)), (Jpeg(), jpeg(60000, 60000)), (Webp(), webp(60000, 60000))]
)
def test_huge_claims_raise_in_every_way_of_decoding(codec: Any, cell: bytes) -> None:
    """A huge declared size raises in batches, in arrays and when resized."""
    assert problem(codec, cell).startswith("it declares 60000 x 60000 pixels, which is 10800000000 bytes decoded")


def test_the_limit_is_on_the_decoded_image() -> None:
    """Grey that is decoded to colours counts as colours. An image of exactly the limit is read."""
    cell = Png().encode(Field("x", "uint8", (10, 10)), np.zeros((10, 10), np.uint8))
    field = Field("image", "uint8", (10, 10, 3))

    assert Png().decode_each(field, blobs(cell, max_cell_bytes=300))[0].shape == (10, 10, 3)
    with pytest.raises(CellProblem, match="which is 300 bytes decoded; the limit for a cell is 299"):
        Png().decode_each(field, blobs(cell, max_cell_bytes=299))


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_an_empty_cell_raises(codec: Any) -> None:
    """The error of an empty cell suggests null for a missing image."""
    assert problem(codec, b"") == f"it is empty; expected a {codec.title}. Write null for a missing image."


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_bytes_that_are_no_image_raise(codec: Any) -> None:
    """The error shows the first bytes, which help to find out what they are."""
    assert problem(codec, b"some text that is no image, " * 4) == (
        f"it starts with 73 6f 6d 65 20 74 65 78, which is not a known image format; expected {codec.title}. Check what "
        "wrote the cell."
    )


OTHERS = {
    "PNG": Png().encode(FIELD, smooth(24, 32)),
    "JPEG": Jpeg().encode(FIELD, smooth(24, 32)),
    "WebP": Webp().encode(FIELD, smooth(24, 32)),
    "AVIF": avif((32, 24)),
    "HEIF": box(b"ftyp", b"heic" + bytes(4) + b"mif1heic") + bytes(32),
    "GIF": b"GIF89a" + bytes(32),
    "BMP": b"BM" + bytes(32),
    "TIFF": b"II*\0" + bytes(32),
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(32),
    "JPEG XL": b"\xff\x0a" + bytes(32),
    "NumPy's .npy": b"\x93NUMPY\x01\0" + bytes(32),
    "NumPy's .npz": b"PK\x03\x04" + bytes(32),
}


@pytest.mark.parametrize("codec", EVERY, ids=repr)
@pytest.mark.parametrize("kind", OTHERS)
def test_another_format_is_named(codec: Any, kind: str) -> None:
    """An image of another format raises an error that names the format."""
    if kind == codec.title:
        return
    assert problem(codec, OTHERS[kind]) == (
        f"it looks like {kind}, and the schema says {codec.title}. Rewrite it, or adopt a schema with its codec: "
        "penstock.adopt(url, schema)."
    )


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_every_truncated_image_raises(codec: Any) -> None:
    """A truncated image raises, wherever it is cut."""
    cell = codec.encode(FIELD, smooth(24, 32))
    for length in {*range(12, len(cell) - 1, 1 + len(cell) // 40), len(cell) - 2}:
        with pytest.raises(CellProblem) as caught:
            codec.decode(FIELD, memoryview(cell)[:length])

        assert str(caught.value).startswith("it is damaged or truncated: ")
        assert str(caught.value).endswith(f"; expected a complete {codec.title}. Rewrite the cell.")


@pytest.mark.parametrize(
    ("codec", "cell", "why"),
    [
        (Png(), OTHERS["PNG"][:20], "its last chunk is missing"),
        (Png(), OTHERS["PNG"][:35], "its last chunk is missing"),
        (Png(), OTHERS["PNG"][:-12], "its last chunk is missing"),
        (Png(), OTHERS["PNG"][:60] + bytes(60), "its chunk b'IDAT' declares"),
        (Png(), OTHERS["PNG"][:60] + b"\xff" + OTHERS["PNG"][61:], "OpenCV cannot decode it"),
        (Png(), OTHERS["PNG"][:25] + b"\x05" + OTHERS["PNG"][26:], "it does not start with a valid header chunk"),
        (Png(), OTHERS["PNG"][:33] + png_chunk(b"teXt", b"") * 5000, "it has too many chunks"),
        (Jpeg(), OTHERS["JPEG"][:100], "it has no frame header"),
        (Jpeg(), OTHERS["JPEG"][:-2], "libjpeg-turbo says 'Premature end of JPEG file'"),
        (Jpeg(), b"\xff\xd8\xff\xfe\0\2" * 5000, "it has no frame header"),
        (Webp(), OTHERS["WebP"][:18], f"it has 18 bytes and declares {len(OTHERS['WebP'])}"),
        (Webp(), b"RIFF\4\0\0\0WEBP", "it ends inside its header"),
        (Webp(), b"RIFF\x20\0\0\0WEBPICCP" + bytes(32), "it starts with a chunk b'ICCP', which WebP does not have"),
        (Avif(), OTHERS["AVIF"][:50], "it has no size"),
        (Avif(), box(b"ftyp", b"avifmif1") + box(b"mdat", b"") * 5000, "it has no size"),
        (Avif(), OTHERS["AVIF"][:-10], "its pixels end after the cell"),
        (Avif(), avif((32, 24), pixels=b""), "it has no pixels"),
        (Avif(), avif((32, 24), pixels=b"\x0a\1\0"), "its pixel data is truncated"),
        (Avif(), avif((32, 24), pixels=b"\x0a\xff"), "its boxes are truncated"),
        (Avif(), avif((32, 24), pixels=b"\x12\0" * 5000), "it has too many parts"),
    ],
)
def test_the_error_of_a_broken_image_has_the_reason(codec: Any, cell: bytes, why: str) -> None:
    """The error says why the image cannot be read."""
    with pytest.raises(CellProblem) as caught:
        codec.decode(FIELD, memoryview(cell))

    assert str(caught.value).startswith(f"it is damaged or truncated: {why}")
    assert str(caught.value).endswith(f"; expected a complete {codec.title}. Rewrite the cell.")


@pytest.mark.parametrize(
    "cell",
    [
        avif((32, 24), pixels=av1(8000, 8000)),
        avif((32, 24), pixels=av1(8000, 8000, still=False)),
        avif((32, 24), pixels=av1(32, 24) + av1(8000, 8000)),
        avif((32, 24), pixels=av1(32, 24).replace(b"\x32\1", b"\x36\0\1") + av1(8000, 8000)),
        avif((32, 24), pixels=b"\0\0\0\0" + struct.pack(">HH", 8000, 8000), kind=b"grid"),
        avif((32, 24), pixels=b"\0\1\0\0" + struct.pack(">II", 8000, 8000), kind=b"grid"),
    ],
)
def test_an_avif_whose_pixels_are_larger_than_it_says_is_not_decoded(cell: bytes) -> None:
    """Decoders reserve memory for the size in the pixels, so it must be one of the sizes in the properties."""
    with pytest.raises(CellProblem) as caught:
        Avif().decode_each(OPEN, blobs(cell))

    assert str(caught.value) == (
        "it is damaged or truncated: its pixels are 8000 x 8000, which is not a size in its properties; expected a complete "
        "AVIF. Rewrite the cell."
    )


def test_a_jpeg_of_very_many_scans_is_not_decoded() -> None:
    """A short scan takes as long to decode as a whole image, so the number of scans is limited."""
    file = io.BytesIO()
    Image.fromarray(smooth(24, 32)).save(file, "JPEG", progressive=True)
    whole = file.getvalue()
    last = whole[whole.rindex(b"\xff\xda") : -2]
    cells = blobs(whole, whole[:-2] + last * 100 + whole[-2:])

    with pytest.raises(CellProblem) as caught:
        Jpeg().decode_into(FIELD, cells, np.zeros((2, 24, 32, 3), np.uint8))

    assert caught.value.row == 1
    assert str(caught.value) == (
        "it is damaged or truncated: it has more than 100 scans, each of which takes as long as an image; expected a "
        "complete JPEG. Rewrite the cell."
    )


@pytest.mark.parametrize("length", [0x7FFFFFFF, 0xFFFFFFFF, 1000])
def test_a_png_whose_chunk_claims_to_be_huge_is_not_decoded(length: int) -> None:
    """OpenCV would reserve the declared size of a chunk, so it is checked against the cell first."""
    whole = OTHERS["PNG"]
    cell = whole[:33] + struct.pack(">I", length) + whole[37:]

    assert problem(Png(), cell) == (
        f"it is damaged or truncated: its chunk {whole[37:41]!r} declares {length} bytes, which is more than the cell has; "
        f"expected a complete PNG. Rewrite the cell."
    )


@pytest.mark.parametrize("codec", EVERY, ids=repr)
@pytest.mark.parametrize("size", [(24, 31), (25, 32), (1, 1), (12, 64), (48, 16)])
def test_another_size_raises(codec: Any, size: tuple[int, int]) -> None:
    """An image of another size raises with both sizes and writes no row, even if it has as many pixels."""
    cells = blobs(codec.encode(FIELD, smooth(24, 32)), codec.encode(OPEN, smooth(*size)))
    out = np.zeros((2, 24, 32, 3), np.uint8)
    wanted = (
        f"it holds uint8 ({size[0]}, {size[1]}, 3), and the schema says uint8 (24, 32, 3). Rewrite it, or adopt a schema "
        "that fits: penstock.adopt(url, schema)."
    )
    ways: list[Callable[[], Any]] = [lambda: codec.decode_into(FIELD, cells, out), lambda: codec.decode_each(FIELD, cells)]
    for way in ways:
        with pytest.raises(CellProblem) as caught:
            way()

        assert (caught.value.row, str(caught.value)) == (1, wanted)
    assert (out[1] == 0).all()


def test_a_jpeg_that_begins_as_the_last_one_is_checked_to_its_end() -> None:
    """A truncated JPEG raises, even if it begins like one that was checked before."""
    good = Jpeg().encode(FIELD, smooth(24, 32))
    out = np.zeros((3, 24, 32, 3), np.uint8)

    with pytest.raises(CellProblem) as caught:
        Jpeg().decode_into(FIELD, blobs(good, good, good[:-30]), out)

    assert caught.value.row == 2
    assert str(caught.value) == (
        "it is damaged or truncated: libjpeg-turbo says 'Premature end of JPEG file'; expected a complete JPEG. Rewrite the "
        "cell."
    )
    np.testing.assert_array_equal(out[1], Jpeg().decode(FIELD, memoryview(good)))


@pytest.mark.parametrize("begin", [b"", *(cell[:40] for cell in OTHERS.values())], ids=repr)
@few_examples
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_an_image_or_raise(begin: bytes, rest: bytes) -> None:
    """Arbitrary bytes are decoded to an image or raise `CellProblem`."""
    for codec in EVERY:
        try:
            found = codec.decode_each(OPEN, blobs(begin + rest))[0]
        except CellProblem as error:
            found = error

        assert found.row == 0 if isinstance(found, CellProblem) else found.ndim == 3


@pytest.mark.parametrize("codec", EVERY, ids=repr)
@few_examples
@given(st.data())
def test_damaged_images_are_decoded_or_raise(codec: Any, data: st.DataObject) -> None:
    """An image with some changed bytes is decoded to the shape of the field or raises `CellProblem`."""
    cell = bytearray(codec.encode(FIELD, smooth(24, 32)))
    for place in data.draw(st.lists(st.integers(0, len(cell) - 1), min_size=1, max_size=4)):
        cell[place] = data.draw(st.integers(0, 255))
    try:
        found = codec.decode(FIELD, memoryview(bytes(cell)))
    except CellProblem as error:
        found = error

    assert found.row == 0 if isinstance(found, CellProblem) else found.shape == (24, 32, 3)


@pytest.mark.parametrize(("codec", "kind"), [(Png(), "PNG"), (Webp(), "WEBP"), (Avif(), "AVIF")])
def test_an_animation_raises(codec: Any, kind: str) -> None:
    """An animation is not decoded to its first image."""
    if kind == "AVIF":
        pytest.importorskip("PIL.AvifImagePlugin", reason="Pillow before 11.3 has no AVIF")
    frames = [Image.fromarray(smooth(24, 32) + shift) for shift in (0, 60)]
    file = io.BytesIO()
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])

    with pytest.raises(CellProblem) as caught:
        codec.decode(FIELD, memoryview(file.getvalue()))

    assert str(caught.value) == (f"it is an animation; expected a {codec.title} with one image. Rewrite it as one image.")
