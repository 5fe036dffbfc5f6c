"""PNGs that are decoded straight into the output array have the pixels and the errors of OpenCV."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock._blobs import Blobs
from penstock.codecs import Png
from penstock.codecs.image.pixels import png_decoder
from penstock.schema import CellProblem, Field

cv2 = pytest.importorskip("cv2", reason="images need OpenCV")
pytest.importorskip("imagecodecs", reason="without it OpenCV decodes all PNGs")
Image = pytest.importorskip("PIL.Image", reason="Pillow writes what others write")

KINDS = [
    ((13, 17), "uint8"),
    ((13, 17, 1), "uint8"),
    ((13, 17, 3), "uint8"),
    ((13, 17, 4), "uint8"),
    ((13, 17), "uint16"),
    ((13, 17, 3), "uint16"),
    ((13, 17, 4), "uint16"),
    ((1, 1, 3), "uint8"),
]


def images(shape: tuple[int, ...], dtype: str, count: int = 5) -> list[Any]:
    """Return images that compress well."""
    down, right = np.mgrid[: shape[0], : shape[1]]
    most = np.iinfo(dtype).max
    found = []
    for number in range(count):
        channels = [(down * 7 + right * (3 + channel) + number) * (most // 255) % most for channel in range(4)]
        found.append((np.stack(channels[: shape[2]], -1) if shape[2:] else channels[0]).astype(dtype))
    return found


def by_opencv(image: Any) -> bytes:
    """Return a PNG that OpenCV encoded."""
    turned = {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}.get(image.shape[2] if image.ndim > 2 else 1)
    return bytes(cv2.imencode(".png", image if turned is None else cv2.cvtColor(image, turned))[1])


def by_pillow(image: Any, **options: Any) -> bytes:
    """Return a PNG that Pillow encoded."""
    file = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2:] == (1,) else image).save(file, "PNG", **options)
    return file.getvalue()


def decoded(field: Field, cells: list[bytes | None]) -> Any:
    """Return cells that are decoded into an array of zeros."""
    out = np.zeros((len(cells), *(size or 0 for size in field.shape)), field.dtype)
    Png().decode_into(field, Blobs.of(pa.array(cells, pa.binary())), out)
    return out


@pytest.fixture(params=["straight", "OpenCV"])
def _decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let images be decoded by imagecodecs, and then by OpenCV without it."""
    if request.param == "OpenCV":
        monkeypatch.setitem(sys.modules, "imagecodecs", None)
    assert (png_decoder() is None) == (request.param == "OpenCV")


@pytest.mark.usefixtures("_decoder")
@pytest.mark.parametrize(("shape", "dtype"), KINDS)
def test_every_kind_is_decoded_as_it_was_written(shape: tuple[int, ...], dtype: str) -> None:
    """Images come back in batches with nulls and one by one, for fields of a fixed and of an open size."""
    field, given = Field("x", dtype, shape, Png(), nullable=True), images(shape, dtype)
    cells: list[bytes | None] = [by_opencv(image) for image in given]

    found = decoded(field, [*cells[:2], None, *cells[2:]])

    np.testing.assert_array_equal(found, [*given[:2], np.zeros(shape, dtype), *given[2:]])
    deferred = Field("x", dtype, (None, None, *shape[2:]), Png())
    for cell, image in zip(cells, given, strict=True):
        assert cell is not None
        for one in (Png().decode(field, memoryview(cell)), Png().decode(deferred, memoryview(cell))):
            assert one.flags.writeable
            np.testing.assert_array_equal(one, image)


@pytest.mark.usefixtures("_decoder")
@pytest.mark.parametrize("shape", [(13, 17), (13, 17, 3), (13, 17, 4)], ids=str)
def test_images_of_two_writers_may_be_mixed(shape: tuple[int, ...]) -> None:
    """Images with other PNG chunks or another compression are read among those of OpenCV."""
    given = images(shape, "uint8", 6)
    cells: list[bytes | None] = [by_opencv(image) for image in given]
    cells[1], cells[3], cells[4] = by_pillow(given[1]), by_pillow(given[3], dpi=(72, 72)), by_pillow(given[4], compress_level=0)

    np.testing.assert_array_equal(decoded(Field("x", "uint8", shape, Png()), cells), given)


@pytest.mark.usefixtures("_decoder")
def test_grey_of_fewer_bits_is_scaled() -> None:
    """Grey of one, two and four bits is scaled to 0 to 255, as OpenCV does it."""
    for bits in (1, 2, 4):
        levels = (1 << bits) - 1
        numbers = np.arange(8, dtype=np.uint8) % (levels + 1)
        line = np.packbits(np.unpackbits(numbers[:, np.newaxis], axis=1)[:, 8 - bits :].reshape(-1)).tobytes()
        cell = png_of_lines(8, 2, bits, 0, (b"\0" + line) * 2)

        found = decoded(Field("x", "uint8", (2, 8), Png()), [cell, cell, cell])

        np.testing.assert_array_equal(found, np.broadcast_to(numbers * (255 // levels), (3, 2, 8)))


def png_of_lines(width: int, height: int, depth: int, colours: int, lines: bytes) -> bytes:
    """Return a PNG of these lines, which include their filter types."""
    return png_of_stream(width, height, depth, colours, zlib.compress(lines))


def png_of_stream(width: int, height: int, depth: int, colours: int, stream: bytes) -> bytes:
    """Return a PNG with this zlib stream of pixels."""
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((depth, colours, 0, 0, 0))
    chunks = [(b"IHDR", header), (b"IDAT", stream), (b"IEND", b"")]
    parts = [len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big") for kind, body in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def stored(image: Any, filter_type: int = 0) -> bytes:
    """Return a PNG with uncompressed pixels in blocks of whole lines, as earlier versions wrote random pixels."""
    lines = np.full((len(image), 1 + image[0].nbytes), filter_type, np.uint8)
    lines[:, 1:] = image.astype(image.dtype.newbyteorder(">")).reshape(len(image), -1).view(np.uint8)
    many = 0xFFFF // lines.shape[1]
    blocks = [lines[first : first + many].tobytes() for first in range(0, len(lines), many)]
    heads = [(number == len(blocks), len(block)) for number, block in enumerate(blocks, 1)]
    body = b"".join(struct.pack("<BHH", *head, 0xFFFF ^ head[1]) + block for head, block in zip(heads, blocks, strict=True))
    stream = b"\x78\x01" + body + zlib.adler32(lines.tobytes()).to_bytes(4, "big")
    colours = {1: 0, 3: 2, 4: 6}[image.shape[2] if image.shape[2:] else 1]
    return png_of_stream(image.shape[1], image.shape[0], 8 * image.itemsize, colours, stream)


def noise(shape: tuple[int, ...], dtype: str = "uint8") -> Any:
    """Return an image of random pixels, which cannot be compressed."""
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@pytest.mark.usefixtures("_decoder")
@pytest.mark.parametrize(("shape", "dtype"), [*KINDS, ((200, 200, 3), "uint8"), ((3, 21_844, 3), "uint8")])
def test_stored_pixels_are_read(shape: tuple[int, ...], dtype: str) -> None:
    """Uncompressed PNGs, which earlier versions wrote, are read in batches and one by one."""
    image = noise(shape, dtype)
    field, cell = Field("x", dtype, shape, Png()), stored(image)

    found = decoded(field, [cell, None, cell])

    np.testing.assert_array_equal(found, [image, np.zeros_like(image), image])
    np.testing.assert_array_equal(Png().decode(field, memoryview(cell)), image)
    with Image.open(io.BytesIO(stored(noise((20, 30, 3))))) as theirs:
        np.testing.assert_array_equal(np.asarray(theirs), noise((20, 30, 3)))


@pytest.mark.usefixtures("_decoder")
def test_filters_of_stored_pixels_are_applied() -> None:
    """Two images that differ only in the filter type of their lines have different pixels."""
    image = noise((12, 256, 3))
    field = Field("x", "uint8", image.shape, Png())

    found = decoded(field, [stored(image), stored(image, filter_type=1)])

    np.testing.assert_array_equal(found, [image, np.cumsum(image, axis=1, dtype=np.uint8)])


@pytest.mark.usefixtures("_decoder")
@pytest.mark.parametrize("at", [0, 9, 17, 24, 30, 36, 39, 43, 47, 700, 5_000, 9_240])
def test_a_changed_byte_never_gives_other_pixels(at: int) -> None:
    """A changed byte of an uncompressed image raises with its row, wherever it is."""
    image = noise((12, 256, 3))
    cell = bytearray(stored(image))
    cell[at] ^= 0x55

    with pytest.raises(CellProblem) as caught:
        decoded(Field("x", "uint8", image.shape, Png()), [stored(image), bytes(cell)])

    assert caught.value.row == 1


@pytest.mark.usefixtures("_decoder")
@pytest.mark.parametrize("image", [noise((128, 256, 3)), noise((96, 96)), noise((3, 40_000, 3)), noise((64, 64, 4), "uint16")])
@pytest.mark.parametrize("compression", [0, 1, 9])
def test_random_pixels_come_back(image: Any, compression: int) -> None:
    """Random pixels are written in hardly more bytes than they have, and come back unchanged."""
    field = Field("x", image.dtype, image.shape, Png(compression=compression))
    assert isinstance(field.codec, Png)
    cell = field.codec.encode(field, image)

    np.testing.assert_array_equal(decoded(field, [cell])[0], image)
    assert len(cell) < 1.02 * image.nbytes


@pytest.mark.usefixtures("_decoder")
def test_the_limit_of_a_cell_holds_for_stored_pixels() -> None:
    """An uncompressed image above the limit of a cell raises."""
    image = noise((64, 64, 3))
    field = Field("x", "uint8", image.shape, Png())
    cells = replace(Blobs.of(pa.array([stored(image)], pa.binary())), max_cell_bytes=image.nbytes - 1)

    with pytest.raises(CellProblem, match="the limit for a cell is 12287"):
        Png().decode_into(field, cells, np.zeros((1, *image.shape), np.uint8))


@pytest.mark.usefixtures("_decoder")
@pytest.mark.parametrize("at", [0.3, 0.5, 0.9])
def test_a_changed_byte_raises_with_its_row(at: float) -> None:
    """A changed byte of compressed pixels raises after valid images, wherever it is."""
    cells: list[Any] = [by_opencv(image) for image in images((13, 17, 3), "uint8")]
    broken = bytearray(cells[3])
    broken[41 + int(at * (len(broken) - 41 - 16))] ^= 0x10
    cells[3] = bytes(broken)

    with pytest.raises(CellProblem) as caught:
        decoded(Field("x", "uint8", (13, 17, 3), Png()), cells)

    assert caught.value.row == 3


@pytest.mark.usefixtures("_decoder")
def test_pixels_that_end_too_early_raise() -> None:
    """An image with too few lines is not completed with the lines of the image before."""
    whole = png_of_lines(8, 4, 8, 0, (b"\0" + bytes(range(8))) * 4)
    short = png_of_lines(8, 4, 8, 0, (b"\0" + bytes(range(8))) * 3)

    with pytest.raises(CellProblem) as caught:
        decoded(Field("x", "uint8", (4, 8), Png()), [whole, whole, short])

    assert caught.value.row == 2
