"""Images are resized to the size that training needs. JPEGs are decoded at a smaller scale to save work."""

from __future__ import annotations

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
simplejpeg = pytest.importorskip("simplejpeg", reason="JPEG needs simplejpeg")

EVERY = [Png(), Jpeg(95), Webp(95), *([Avif(95)] if cv2.haveImageWriter("image.avif") else [])]
few_examples = settings(max_examples=40, deadline=None)


def smooth(height: int, width: int, channels: int = 3) -> Any:
    """Return an image that looks the same at every size."""
    down, right = np.linspace(0, 90, height)[:, None], np.linspace(0, 90, width)[None]
    return np.stack([30 * channel + down + right for channel in range(channels)], -1).astype(np.uint8)


def blobs(*cells: bytes | None) -> Blobs:
    """Return cells as a batch."""
    return Blobs.of(pa.array(cells, pa.binary()))


def mean_difference(one: Any, other: Any) -> float:
    """Return the mean absolute difference of the pixels of two images."""
    return float(np.abs(one.astype(int) - other.astype(int)).mean())


@pytest.mark.parametrize("codec", EVERY, ids=repr)
@pytest.mark.parametrize("channels", [(), (1,), (3,)])
def test_images_of_any_size_become_one_batch(codec: Any, channels: tuple[int, ...]) -> None:
    """Smaller, larger and mixed sizes are resized to the size of the array. Null rows are unchanged."""
    field = Field("image", "uint8", (None, None, *channels), codec, nullable=True)
    sizes = [(64, 96), (16, 24), (30, 12), (12, 60), (32, 48)]
    images = [smooth(*size, *(channels or (1,))).reshape(*size, *channels) for size in sizes]
    out = np.full((6, 32, 48, *channels), 7, np.uint8)

    codec.decode_resized(field, blobs(None, *(codec.encode(field, image) for image in images)), out)

    assert (out[0] == 7).all()
    for row in range(1, 6):
        assert mean_difference(out[row], smooth(32, 48, *(channels or (1,))).reshape(32, 48, *channels)) < 5


def test_shrinking_averages_and_growing_interpolates() -> None:
    """A smaller image has the mean of each area. A larger one has linear slopes between pixels."""
    field = Field("image", "uint8", (None, None), Png())
    stripes = np.tile(np.array([0, 200], np.uint8), (4, 8))
    small, large = np.zeros((1, 2, 8), np.uint8), np.zeros((1, 1, 4), np.uint8)

    Png().decode_resized(field, blobs(Png().encode(field, stripes)), small)
    Png().decode_resized(field, blobs(Png().encode(field, np.array([[0, 200]], np.uint8))), large)

    assert (small == 100).all()
    assert large.tolist() == [[[0, 50, 150, 200]]]


def test_one_side_may_shrink_while_the_other_grows() -> None:
    """The side that shrinks is averaged before the other grows."""
    field = Field("image", "uint8", (None, None), Png())
    stripes = np.tile(np.array([0, 200], np.uint8), (2, 8))
    out = np.zeros((1, 5, 8), np.uint8)

    Png().decode_resized(field, blobs(Png().encode(field, stripes)), out)

    assert (out == 100).all()


def test_sixteen_bits_and_alpha_are_resized() -> None:
    """Resizing keeps the depth of 16 bits and the alpha channel."""
    field = Field("image", "uint16", (None, None, 4), Png())
    out = np.zeros((1, 4, 4, 4), np.uint16)

    Png().decode_resized(field, blobs(Png().encode(field, np.full((9, 7, 4), [1, 300, 40000, 65535], np.uint16))), out)

    assert (out == [1, 300, 40000, 65535]).all()


def test_a_batch_that_is_not_dense_is_filled() -> None:
    """A view of a larger array is filled too, with images of its own size and of other sizes."""
    field = Field("image", "uint8", (None, None, 3), Jpeg())
    cells = blobs(*(Jpeg(95).encode(field, smooth(*size)) for size in ((40, 40), (20, 20), (160, 160), (10, 10))))
    wide, dense = np.zeros((4, 20, 40, 3), np.uint8), np.zeros((4, 20, 20, 3), np.uint8)

    Jpeg().decode_resized(field, cells, wide[:, :, ::2])
    Jpeg().decode_resized(field, cells, dense)

    np.testing.assert_array_equal(wide[:, :, ::2], dense)
    assert (wide[:, :, 1::2] == 0).all()


@few_examples
@given(st.tuples(*[st.integers(1, 70)] * 2), st.tuples(*[st.integers(1, 40)] * 2))
def test_jpegs_are_decoded_at_the_smallest_scale_that_is_enough(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    """`shrink_to` decodes at the smallest eighth that is not smaller, as simplejpeg does."""
    codec = Jpeg(95, shrink_to=wanted)
    field = Field("image", "uint8", (None, None, 3), codec)
    cell = codec.encode(field, smooth(*size))
    scales = [tuple(-(-side * eighths // 8) for side in size) for eighths in range(1, 9)]
    enough = [
        scale for scale in scales if all(has >= min(side, want) for has, side, want in zip(scale, size, wanted, strict=True))
    ]

    found = codec.decode_each(field, blobs(cell))[0]

    assert found.shape == (*enough[0], 3)
    np.testing.assert_array_equal(found, simplejpeg.decode_jpeg(cell, min_height=wanted[0], min_width=wanted[1]))
    np.testing.assert_array_equal(found, codec.decode(field, memoryview(cell)))


def test_shrunk_images_fill_an_array_of_their_size_only() -> None:
    """Images that shrink to the size of the array are decoded into it. Another size raises."""
    codec = Jpeg(shrink_to=(10, 10))
    field = Field("image", "uint8", (None, None, 3), codec)
    cells = blobs(*(codec.encode(field, smooth(*size)) for size in ((80, 80), (40, 40), (90, 80))))
    out = np.zeros((2, 10, 10, 3), np.uint8)

    codec.decode_into(field, cells.take(slice(2)), out)
    with pytest.raises(CellProblem) as caught:
        codec.decode_into(field, cells.take(slice(2, 3)), out)

    np.testing.assert_array_equal(out, codec.decode_each(field, cells.take(slice(2))))
    assert str(caught.value) == (
        "it holds uint8 (12, 10, 3), and the schema says uint8 (None, None, 3). Rewrite it, or adopt a schema that fits: "
        "penstock.adopt(url, schema)."
    )


def test_resizing_raises_for_other_channels_and_depths() -> None:
    """Only the height and the width of an image may differ from the field."""
    field = Field("image", "uint8", (None, None, 3))
    wrong = [Png().encode(Field("x", dtype, (None, None, 4)), np.ones((4, 4, 4), dtype)) for dtype in ("uint8", "uint16")]

    for cell, problem in zip(wrong, ("its alpha would be lost", r"it holds uint16 \(4, 4, 4\)"), strict=True):
        with pytest.raises(CellProblem, match=problem):
            Png().decode_resized(field, blobs(cell), np.zeros((1, 2, 2, 3), np.uint8))
