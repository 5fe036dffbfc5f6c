"""PNGs of noise: stored as they are, read by everybody, and checked when they are read here."""

from __future__ import annotations

import io
import zlib
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from penstock._blobs import Blobs
from penstock.codecs import Png
from penstock.codecs.image import stored_png as _png_stored
from penstock.schema import CellProblem, Field

SHAPES = st.tuples(st.integers(1, 200), st.integers(1, 200), st.sampled_from([(), (1,), (3,), (4,)])).map(
    lambda sizes: (*sizes[:2], *sizes[2])
)


def noise(shape: tuple[int, ...], dtype: str = "uint8", seed: int = 0) -> np.ndarray[Any, np.dtype[Any]]:
    """Return an image of pure chance."""
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def by_opencv(cell: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    """Return an image as OpenCV reads it."""
    found = cv2.imdecode(np.frombuffer(cell, np.uint8), cv2.IMREAD_UNCHANGED)
    assert found is not None
    if found.ndim == 2:
        return found
    return cv2.cvtColor(found, cv2.COLOR_BGR2RGB if found.shape[2] == 3 else cv2.COLOR_BGRA2RGBA)


def decoded(field: Field, cells: list[bytes | None]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return images decoded together, zeros where there is none."""
    out = np.zeros((len(cells), *(size or 0 for size in field.shape)), field.dtype)
    assert isinstance(field.codec, Png)
    field.codec.decode_into(field, Blobs.of(pa.array(cells, pa.binary())), out)
    return out


@given(shape=SHAPES, dtype=st.sampled_from(["uint8", "uint16"]), seed=st.integers(0, 1000))
def test_what_is_stored_comes_back_here_and_in_opencv(shape: tuple[int, ...], dtype: str, seed: int) -> None:
    """Every size, depth and number of channels is a PNG that OpenCV reads, and that we read one by one and many at once."""
    image = noise(shape, dtype, seed)
    flat = image[..., 0] if shape[2:] == (1,) else image
    cell = _png_stored.write(flat)
    field = Field("image", dtype, shape, Png())

    assert np.array_equal(by_opencv(cell), flat)
    found = _png_stored.read(memoryview(cell), flat.shape, flat.dtype)
    assert found is not None
    assert np.array_equal(found, flat)
    assert np.array_equal(Png().decode(field, memoryview(cell)), image)
    assert np.array_equal(decoded(field, [cell, None, cell]), np.stack([image, np.zeros_like(image), image]))


def test_pillow_reads_what_is_stored() -> None:
    """A PNG of noise is one for Pillow too, which compares all checksums."""
    image = noise((128, 256, 3))

    with Image.open(io.BytesIO(Png().encode(Field("image", "uint8", image.shape, Png()), image))) as found:
        assert np.array_equal(np.asarray(found), image)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("shape", [(128, 256, 3), (96, 96), (64, 64, 4), (1, 9000)])
def test_noise_is_stored_in_no_more_bytes_than_opencv_takes(shape: tuple[int, ...], dtype: str) -> None:
    """Nothing is lost by not compressing what cannot be compressed."""
    image = noise(shape, dtype)
    cell = Png().encode(Field("image", dtype, shape, Png()), image)
    theirs = cv2.imencode(".png", image)[1]

    assert _png_stored.is_noise(image)
    assert len(cell) <= 1.001 * len(theirs)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((128, 128, 3), np.uint8),
        np.add.outer(np.arange(128), np.arange(128)).astype(np.uint8),
        noise((128, 128, 3)) // 2,
        np.repeat(noise((128, 32, 3)), 4, axis=1),
        np.concatenate([noise((64, 128, 3)), np.zeros((64, 128, 3), np.uint8)]),
        noise((128, 128)).astype(np.uint16),
        noise((8, 8, 3)),
        noise((9000, 2)),
    ],
    ids=["flat", "slope", "seven bits", "wide pixels", "half flat", "low bytes", "small", "narrow"],
)
def test_what_can_be_made_smaller_is_not_stored(image: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Only an image that differences of neighbours say nothing of is taken for noise; small ones are not looked at."""
    assert not _png_stored.is_noise(image)


def test_compression_of_nothing_stores_everything() -> None:
    """`Png(compression=0)` stores a flat image as well, and `Png(compression=9)` compresses noise."""
    flat, rough = np.zeros((64, 64, 3), np.uint8), noise((64, 64, 3))

    assert len(Png(compression=0).encode(Field("image", "uint8", (64, 64, 3), Png()), flat)) > flat.nbytes
    assert np.array_equal(by_opencv(Png(compression=9).encode(Field("image", "uint8", (64, 64, 3), Png()), rough)), rough)


@pytest.mark.parametrize("width", [21_844, 21_845, 40_000])
@pytest.mark.parametrize("compression", [0, 1])
def test_lines_that_are_too_long_to_be_stored_are_left_to_opencv(width: int, compression: int) -> None:
    """A line of 65,535 bytes or more does not fit under one head; such images come back all the same."""
    image = noise((3, width, 3))
    field = Field("image", "uint8", image.shape, Png(compression=compression))
    assert isinstance(field.codec, Png)
    cell = field.codec.encode(field, image)

    assert np.array_equal(by_opencv(cell), image)
    assert np.array_equal(decoded(field, [cell])[0], image)
    assert np.array_equal(field.codec.decode(field, memoryview(cell)), image)


def test_what_a_cell_may_take_holds_for_stored_images_too() -> None:
    """The limit of a cell is that of all codecs."""
    image = noise((64, 64, 3))
    field = Field("image", "uint8", image.shape, Png())
    cells = replace(Blobs.of(pa.array([_png_stored.write(image)], pa.binary())), max_cell_bytes=image.nbytes - 1)

    with pytest.raises(CellProblem, match="a cell may take"):
        Png().decode_into(field, cells, np.zeros((1, *image.shape), np.uint8))


@given(at=st.integers(0, 12 * 769 + 100), change=st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(at: int, change: int) -> None:
    """Whichever byte of a stored image is changed, it is an error that names the row, never other pixels."""
    image = noise((12, 256, 3))
    cell = bytearray(_png_stored.write(image))
    at %= len(cell)
    cell[at] ^= change
    field = Field("image", "uint8", image.shape, Png())

    with pytest.raises(CellProblem) as caught:
        decoded(field, [_png_stored.write(image), bytes(cell)])
    assert caught.value.row == 1


def test_stored_images_of_others_are_read() -> None:
    """Filters over stored pixels, blocks that end within lines, and several chunks are left to OpenCV."""
    image = noise((200, 200, 3))
    field = Field("image", "uint8", image.shape, Png())
    theirs = bytes(cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_PNG_COMPRESSION, 0])[1])
    lines = np.zeros((200, 601), np.uint8)
    lines[:, 1:] = image.reshape(200, -1)
    filtered = lines.copy()
    filtered[:, 0] = 1
    filtered[:, 4:] -= lines[:, 1:-3]
    ours = _png_stored.write(image)
    cells = [
        theirs,
        ours,
        _repacked(ours, zlib.compress(lines.tobytes(), 0)),
        _repacked(ours, zlib.compress(filtered.tobytes(), 0)),
    ]

    assert np.array_equal(decoded(field, list(cells)), np.stack([image] * 4))


def _repacked(cell: bytes, stream: bytes) -> bytes:
    """Return an image with other bytes for its pixels."""
    body = b"IDAT" + stream
    return cell[:33] + len(stream).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big") + cell[-12:]


def test_a_filter_in_the_layout_of_ours_is_heeded() -> None:
    """An image that differs from ours only in that its lines are filtered is not taken for one."""
    image = noise((12, 256, 3))
    cell = _png_stored.write(image)
    lines = np.frombuffer(cell, np.uint8)[48:-20].reshape(12, 769).copy()
    lines[:, 0] = 1
    raw = lines.tobytes()
    stream = cell[41:48] + raw + zlib.adler32(raw).to_bytes(4, "big")
    field = Field("image", "uint8", image.shape, Png())
    expected = np.cumsum(image, axis=1, dtype=np.uint8)

    assert np.array_equal(decoded(field, [_repacked(cell, stream)])[0], expected)
