"""Images come back as they were written, in the order RGB, and other programs read what we write."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._blobs import Blobs
from penstock.codecs import Avif, Jpeg, Png, Webp, named
from penstock.errors import ArgumentError, DataError, MissingExtraError
from penstock.schema import CellProblem, Field

cv2 = pytest.importorskip("cv2", reason="images need OpenCV")
pytest.importorskip("simplejpeg", reason="JPEG needs simplejpeg")
Image = pytest.importorskip("PIL.Image", reason="Pillow tells whether others read what we write")

HAS_AVIF = cv2.haveImageWriter("image.avif")
EVERY = [Png(), Jpeg(), Webp(), *([Avif()] if HAS_AVIF else [])]
few_examples = settings(max_examples=40, deadline=None)
sides = st.integers(min_value=1, max_value=33)


def smooth(height: int, width: int, channels: int = 3, *, dtype: str = "uint8") -> Any:
    """Return an image without edges and with different channels, which codecs with loss change little."""
    down, right = np.mgrid[:height, :width]
    layers = [
        60 + 40 * channel + (down * (1 + channel % 2) + right * (2 - channel % 2)) % 90 // 2 for channel in range(channels)
    ]
    return (np.stack(layers, -1) * (257 if dtype == "uint16" else 1)).astype(dtype)


def noise(shape: tuple[int, ...], seed: int, dtype: str = "uint8") -> Any:
    """Return an image of random pixels."""
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max + 1, shape, dtype)


def blobs(*cells: bytes | None) -> Blobs:
    """Return cells as a batch."""
    return Blobs.of(pa.array(cells, pa.binary()))


def mean_difference(one: Any, other: Any) -> float:
    """Return the mean absolute difference of the pixels of two images."""
    return float(np.abs(one.astype(int) - other.astype(int)).mean())


@few_examples
@given(sides, sides, st.sampled_from([(), (1,), (3,), (4,)]), st.sampled_from(["uint8", "uint16"]), st.integers(0, 9))
def test_png_gives_back_every_pixel(height: int, width: int, channels: tuple[int, ...], dtype: str, compression: int) -> None:
    """PNG is lossless at any depth, size, number of channels and compression."""
    image = noise((height, width, *channels), height * width, dtype)
    field = Field("image", dtype, (None, None, *channels), Png(compression))

    found = Png(compression).decode(field, memoryview(Png(compression).encode(field, image)))

    assert found.dtype == dtype
    np.testing.assert_array_equal(found, image)


@few_examples
@given(sides, sides, st.sampled_from([(), (1,), (3,), (4,)]))
def test_lossless_webp_gives_back_every_pixel(height: int, width: int, channels: tuple[int, ...]) -> None:
    """Lossless WebP keeps all pixels of grey, colour and alpha images, also if all are opaque."""
    codec = Webp(lossless=True)
    field = Field("image", "uint8", (None, None, *channels), codec)
    image = noise((height, width, *channels), height * width)
    if channels == (4,):
        image[..., 3] = 255 if height % 2 else np.maximum(image[..., 3], 1)

    np.testing.assert_array_equal(codec.decode(field, memoryview(codec.encode(field, image))), image)


def test_lossless_webp_keeps_colours_that_cannot_be_seen() -> None:
    """Pixels with an alpha of 0 keep their colours. An OpenCV that would lose them raises."""
    codec = Webp(lossless=True)
    field = Field("image", "uint8", (None, None, 4), codec)
    image = noise((8, 8, 4), 1)
    image[:4, :, 3] = 0

    if hasattr(cv2, "IMWRITE_WEBP_LOSSLESS_MODE"):
        np.testing.assert_array_equal(codec.decode(field, memoryview(codec.encode(field, image))), image)
    else:
        with pytest.raises(
            MissingExtraError, match="loses the colours of pixels whose alpha is 0, so lossless=True is not possible"
        ):
            codec.encode(field, image)


@pytest.mark.parametrize("codec", [Jpeg(quality=95), Webp(quality=95), Avif(quality=95)], ids=repr)
@few_examples
@given(height=sides, width=sides, channels=st.sampled_from([(), (1,), (3,)]))
def test_loss_is_small(codec: Any, height: int, width: int, channels: tuple[int, ...]) -> None:
    """Every codec with loss changes a smooth image little, and keeps its size and channels."""
    if isinstance(codec, Avif) and not HAS_AVIF:
        pytest.skip("this OpenCV was built without AVIF")
    field = Field("image", "uint8", (None, None, *channels), codec)
    image = smooth(height, width, *channels).reshape(height, width, *channels) if channels else smooth(height, width, 1)[..., 0]

    found = codec.decode(field, memoryview(codec.encode(field, image)))

    assert found.shape == image.shape
    assert mean_difference(found, image) < 6


@pytest.mark.parametrize("codec", [Webp(quality=95), Avif(quality=95)], ids=repr)
def test_alpha_survives_loss(codec: Any) -> None:
    """Codecs with loss store the alpha channel, also if it is 255 everywhere."""
    if isinstance(codec, Avif) and not HAS_AVIF:
        pytest.skip("this OpenCV was built without AVIF")
    field = Field("image", "uint8", (32, 32, 4), codec)
    image = smooth(32, 32, 4)
    opaque = image.copy()
    opaque[..., 3] = 255

    found = codec.decode_each(field, blobs(codec.encode(field, image), codec.encode(field, opaque)))

    assert mean_difference(found[0][..., 3], image[..., 3]) < 3
    assert (found[1][..., 3] == 255).all()


@pytest.mark.parametrize("codec", EVERY, ids=repr)
@pytest.mark.parametrize("channels", [1, 3])
def test_other_programs_read_what_we_write(codec: Any, channels: int) -> None:
    """Pillow and OpenCV read the same colours in the same order."""
    image = smooth(24, 40, channels)
    field = Field("image", "uint8", (24, 40, channels), codec)
    cell = codec.encode(field, image)

    ours = codec.decode(field, memoryview(cell)).reshape(24, 40, channels)
    if codec.name == "avif":
        pytest.importorskip("PIL.AvifImagePlugin", reason="Pillow before 11.3 has no AVIF")
    pillow = np.asarray(Image.open(io.BytesIO(cell)).convert("RGB" if channels == 3 else "L")).reshape(image.shape)
    how = cv2.IMREAD_COLOR if channels == 3 else cv2.IMREAD_GRAYSCALE
    opencv = cv2.imdecode(np.frombuffer(cell, np.uint8), how).reshape(image.shape)[..., ::-1]

    assert mean_difference(image, ours) < 4
    assert mean_difference(pillow, ours) < 1
    assert mean_difference(opencv, ours) < 1


def test_jpeg_halves_colours() -> None:
    """Colours are stored at half the width and half the height."""
    cell = Jpeg().encode(Field("image", "uint8", (16, 16, 3), Jpeg()), smooth(16, 16))
    frame = cell.index(b"\xff\xc0")

    assert cell[frame + 11] == 0x22
    assert (cell[frame + 14], cell[frame + 17]) == (0x11, 0x11)


def test_quality_and_compression_are_used() -> None:
    """Higher quality takes more bytes, and higher compression fewer."""
    image = cv2.blur(noise((64, 64, 3), 0), (3, 3))
    field = Field("image", "uint8", (64, 64, 3))

    def size(codec: Any) -> int:
        return len(codec.encode(field, image))

    assert size(Jpeg(10)) < size(Jpeg()) < size(Jpeg(100))
    assert size(Webp(10)) < size(Webp()) < size(Webp(lossless=True))
    assert size(Png(9)) < size(Png(0))
    assert size(Png()) < size(Png(0))
    if HAS_AVIF:
        assert size(Avif(10)) < size(Avif()) < size(Avif(100))


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_every_way_of_decoding_gives_the_same(codec: Any) -> None:
    """`decode`, `decode_each` and `decode_into` give the same pixels, and skip nulls."""
    field = Field("image", "uint8", (20, 30, 3), codec, nullable=True)
    images = [np.roll(smooth(20, 30), step, 0) for step in range(4)]
    cells = blobs(codec.encode(field, images[0]), None, *(codec.encode(field, image) for image in images[1:]))
    out = np.full((5, 20, 30, 3), 7, np.uint8)

    each = codec.decode_each(field, cells)
    codec.decode_into(field, cells, out)

    assert each[1] is None
    assert (out[1] == 7).all()
    for row in (0, 2, 3, 4):
        np.testing.assert_array_equal(out[row], each[row])
        np.testing.assert_array_equal(codec.decode(field, cells[row]), each[row])
        assert each[row].flags.writeable
        assert each[row].flags.c_contiguous


@pytest.mark.parametrize("codec", EVERY, ids=repr)
@pytest.mark.parametrize("channels", [(), (1,), (3,)])
def test_images_are_decoded_into_arrays_that_are_not_dense(codec: Any, channels: tuple[int, ...]) -> None:
    """An output that is a view of a larger array is filled, and the rest of it is unchanged."""
    field = Field("image", "uint8", (20, 30, *channels), codec)
    image = smooth(20, 30, *(channels or (1,))).reshape(20, 30, *channels)
    cells = blobs(codec.encode(field, image))
    out = np.zeros((1, 20, 60, *channels), np.uint8)

    codec.decode_into(field, cells, out[:, :, ::2])

    np.testing.assert_array_equal(out[0, :, ::2], codec.decode(field, cells[0]))
    assert (out[0, :, 1::2] == 0).all()


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_cells_that_are_not_dense_are_written(codec: Any) -> None:
    """A strided view of an image is encoded like its copy."""
    field = Field("image", "uint8", (20, 30, 3), codec)
    wide = smooth(20, 60)

    assert codec.encode(field, wide[:, ::2]) == codec.encode(field, wide[:, ::2].copy())


@pytest.mark.parametrize("codec", EVERY, ids=repr)
def test_open_channels_give_what_is_stored(codec: Any) -> None:
    """Without fixed channels grey images have one and colour images three. WebP has no grey."""
    field = Field("image", "uint8", (None, None, None), codec)
    cells = [codec.encode(field, smooth(9, 8, channels)) for channels in (1, 3)]

    shapes = [found.shape for found in codec.decode_each(field, blobs(*cells))]

    assert shapes == [(9, 8, 3 if codec.name == "webp" else 1), (9, 8, 3)]


def test_sizes_may_be_open_one_by_one() -> None:
    """A field may fix the width and leave the height open."""
    field = Field("image", "uint8", (None, 8, 3), Jpeg())
    high, wide = (Jpeg().encode(Field("x", "uint8", (None, None, 3)), smooth(*size)) for size in ((9, 8), (8, 9)))

    assert Jpeg().decode(field, memoryview(high)).shape == (9, 8, 3)
    with pytest.raises(CellProblem, match=r"it holds uint8 \(8, 9, 3\), and the schema says uint8 \(None, 8, 3\)"):
        Jpeg().decode(field, memoryview(wide))


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        (Png(), {"compression": 1}),
        (Jpeg(), {"quality": 80, "shrink_to": None}),
        (Jpeg(70, (2, 3)), {"quality": 70, "shrink_to": [2, 3]}),
        (Webp(), {"quality": 80, "lossless": False}),
        (Avif(), {"quality": 80}),
    ],
    ids=repr,
)
def test_options_come_back_from_json(codec: Any, options: dict[str, Any]) -> None:
    """A codec is made again from its name and its options as JSON."""
    text = json.dumps(codec.options())

    assert json.loads(text) == options
    assert named(codec.name, json.loads(text)) == codec


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(["png", "jpeg", "webp", "avif"]), st.data())
def test_hostile_options_are_valid_or_raise(name: str, data: st.DataObject) -> None:
    """Arbitrary stored options make a codec or raise `DataError`."""
    names = st.sampled_from(["compression", "quality", "shrink_to", "lossless", "other"])
    options = data.draw(st.dictionaries(names, json_values, max_size=2))
    try:
        made: Any = named(name, options)
    except DataError as error:
        made = error

    if isinstance(made, DataError):
        assert str(made).startswith(f"codec {name!r} was stored with invalid options")
    else:
        assert made == named(name, json.loads(json.dumps(made.options())))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Png(10), "Png() got compression=10; expected an integer from 0 to 9, for example Png(compression=9)."),
        (lambda: Jpeg(0), "Jpeg() got quality=0; expected an integer from 1 to 100, for example Jpeg(quality=100)."),
        (
            lambda: Webp(quality=True),
            "Webp() got quality=True; expected an integer from 1 to 100, for example Webp(quality=100).",
        ),
        (lambda: Avif("9"), "Avif() got quality='9'; expected an integer from 1 to 100, for example Avif(quality=100)."),  # type: ignore[arg-type]
        (lambda: Webp(lossless=1), "Webp() got lossless=1; expected a bool, for example Webp(lossless=True)."),  # type: ignore[arg-type]
        (
            lambda: Jpeg(shrink_to=(0, 5)),
            "Jpeg() got shrink_to=(0, 5); expected a height and a width from 1 to 65500, for example Jpeg(shrink_to=(224, "
            "224)).",
        ),
    ],
)
def test_invalid_options_raise(make: Any, message: str) -> None:
    """Options are checked when the codec is made."""
    with pytest.raises(ArgumentError) as caught:
        make()

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("codec", "dtype", "shape", "message"),
    [
        (Jpeg(), "uint16", (4, 4), "Field 'x' has dtype uint16, but JPEG stores uint8. Use penstock.codecs.Npy()."),
        (Png(), "int16", (4, 4), "Field 'x' has dtype int16, but PNG stores uint8 or uint16. Use penstock.codecs.Npy()."),
        (
            Jpeg(),
            "uint8",
            (4, 4, 4),
            "Field 'x' has shape (4, 4, 4), but JPEG stores (height, width), (height, width, 1), (height, width, 3); any of "
            "them can be None. Use one of these shapes, or penstock.codecs.Npy().",
        ),
        (
            Webp(),
            "uint8",
            (4,),
            "Field 'x' has shape (4,), but WebP stores (height, width), (height, width, 1), (height, width, 3), (height, "
            "width, 4); any of them can be None. Use one of these shapes, or penstock.codecs.Npy().",
        ),
        (
            Webp(),
            "uint8",
            (4, 20000),
            "Field 'x' has shape (4, 20000), but WebP stores 1 to 16383 pixels on a side. Use penstock.codecs.Npy().",
        ),
        (
            Png(),
            "uint8",
            (0, 4),
            "Field 'x' has shape (0, 4), but PNG stores 1 to 1000000 pixels on a side. Use penstock.codecs.Npy().",
        ),
        (
            Jpeg(shrink_to=(8, 8)),
            "uint8",
            (None, 9, 3),
            "Field 'x' has the fixed shape (None, 9, 3), and Jpeg(quality=80, shrink_to=(8, 8)) gives images of different "
            "sizes. Use the shape (None, None, 3), or remove shrink_to.",
        ),
    ],
)
def test_fields_that_are_no_images_raise(codec: Any, dtype: str, shape: Any, message: str) -> None:
    """The dtype and the shape of a field are checked when the field is made."""
    with pytest.raises(ArgumentError) as caught:
        Field("x", dtype, shape, codec)

    assert str(caught.value) == message


def test_images_that_a_format_cannot_hold_raise() -> None:
    """Sizes and channels that the field leaves open are checked when an image is encoded."""
    field = Field("x", "uint8", (None, None, None))
    with pytest.raises(ArgumentError) as wide:
        Webp().encode(field, np.zeros((1, 17000, 3), np.uint8))
    with pytest.raises(ArgumentError) as alpha:
        Jpeg().encode(field, np.zeros((2, 2, 4), np.uint8))
    with pytest.raises(ArgumentError, match=r"Column 'x' got an image of shape \(0, 4, 3\)"):
        Png().encode(field, np.zeros((0, 4, 3), np.uint8))

    assert str(wide.value) == (
        "Column 'x' got an image of shape (1, 17000, 3), but WebP stores 1 to 16383 pixels on a side and 1 or 3 or 4 "
        "channels. Crop it, or use penstock.codecs.Npy()."
    )
    assert str(alpha.value) == (
        "Column 'x' got an image of shape (2, 2, 4), but JPEG stores 1 to 65500 pixels on a side and 1 or 3 channels. Crop "
        "it, or use penstock.codecs.Npy()."
    )


@pytest.mark.parametrize("codec", [Png(), Jpeg(), Webp(), Avif()], ids=repr)
def test_a_missing_library_is_named(codec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the libraries the error names the extra to install."""
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.setitem(sys.modules, "simplejpeg", None)

    with pytest.raises(MissingExtraError) as caught:
        codec.encode(Field("x", "uint8", (4, 4, 3)), smooth(4, 4))

    wanted = "Images need simplejpeg and OpenCV, which are not installed. Install them: pip install 'penstock[image]'"
    assert str(caught.value) == wanted


@pytest.mark.skipif(HAS_AVIF, reason="this OpenCV was built with AVIF")
def test_a_format_that_opencv_was_built_without_is_named() -> None:
    """Encoding AVIF with an OpenCV that lacks it raises an error that says so."""
    with pytest.raises(MissingExtraError) as caught:
        Avif().encode(Field("x", "uint8", (4, 4, 3)), smooth(4, 4))

    assert str(caught.value) == (
        f"OpenCV {cv2.__version__} was built without AVIF. Install one that has it: pip install -U 'penstock[image]'"
    )
