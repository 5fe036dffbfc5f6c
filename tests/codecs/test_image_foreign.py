"""Images that other programs wrote: palettes, grey, alpha, CMYK and bit depths."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from penstock.codecs import Avif, Jpeg, Png, Webp
from penstock.schema import CellProblem, Field

cv2 = pytest.importorskip("cv2", reason="images need OpenCV")
pytest.importorskip("simplejpeg", reason="JPEG needs simplejpeg")
Image = pytest.importorskip("PIL.Image", reason="Pillow writes what others write")

REMEDY = " Rewrite it, or adopt a schema that fits: penstock.adopt(url, schema)."


def smooth(height: int, width: int) -> Any:
    """Return a coloured image without edges."""
    down, right = np.mgrid[:height, :width]
    return np.stack([40 + down + right, 60 + 2 * down, 200 - 2 * right], -1).astype(np.uint8)


def saved(image: Any, kind: str, **options: Any) -> memoryview:
    """Return an image as Pillow writes it."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return memoryview(file.getvalue())


def decode(codec: Any, cell: memoryview, *channels: int | None, dtype: str = "uint8") -> Any:
    """Return an image that is decoded for a field with these channels."""
    return codec.decode(Field("image", dtype, (None, None, *channels), codec), cell)


def mean_difference(one: Any, other: Any) -> float:
    """Return the mean absolute difference of the pixels of two images."""
    return float(np.abs(one.astype(int) - other.astype(int)).mean())


COLOURS = Image.fromarray(smooth(12, 20))
GREY = COLOURS.convert("L")
WITH_ALPHA = COLOURS.convert("RGBA")
WITH_ALPHA.putalpha(GREY)


def test_a_palette_becomes_colours() -> None:
    """An image with a palette is read as the colours of the palette."""
    palette = COLOURS.quantize(16)

    found = decode(Png(), saved(palette, "PNG"), 3)

    np.testing.assert_array_equal(found, np.asarray(palette.convert("RGB")))


def test_one_bit_becomes_black_and_white() -> None:
    """A PNG of one bit is read as grey of 0 and 255, or as colours."""
    bits = GREY.convert("1")
    cell = saved(bits, "PNG")

    np.testing.assert_array_equal(decode(Png(), cell), np.asarray(bits.convert("L")))
    np.testing.assert_array_equal(decode(Png(), cell, 3), np.asarray(bits.convert("RGB")))


@pytest.mark.parametrize(("codec", "kind"), [(Png(), "PNG"), (Jpeg(), "JPEG")], ids=repr)
def test_grey_becomes_colours_where_the_field_says_so(codec: Any, kind: str) -> None:
    """A field of three channels reads a grey image as three equal channels."""
    cell = saved(GREY, kind)

    found = decode(codec, cell, 3)

    np.testing.assert_array_equal(found[..., 0], decode(codec, cell))
    np.testing.assert_array_equal(found[..., 1], found[..., 0])
    np.testing.assert_array_equal(found[..., 2], found[..., 0])
    assert mean_difference(found[..., 0], np.asarray(GREY)) < 3


def test_colours_get_an_alpha_of_255_where_the_field_says_so() -> None:
    """A field of four channels reads RGB and grey images with an alpha of 255."""
    for image in (COLOURS, GREY):
        found = decode(Png(), saved(image, "PNG"), 4)

        np.testing.assert_array_equal(found, np.asarray(image.convert("RGBA")))


def test_grey_with_alpha_becomes_rgba() -> None:
    """No field has two channels, so grey with alpha is read as RGBA."""
    image = WITH_ALPHA.convert("LA")
    cell = saved(image, "PNG")

    np.testing.assert_array_equal(decode(Png(), cell, 4), np.asarray(image.convert("RGBA")))
    np.testing.assert_array_equal(decode(Png(), cell, None), np.asarray(image.convert("RGBA")))


@pytest.mark.parametrize(
    ("codec", "cell", "channels", "problem"),
    [
        (
            Png(),
            saved(WITH_ALPHA, "PNG"),
            3,
            "(12, 20, 4), and the schema says uint8 (None, None, 3): its alpha would be lost.",
        ),
        (Png(), saved(COLOURS, "PNG"), 1, "(12, 20, 3), and the schema says uint8 (None, None, 1): its colours would be lost."),
        (
            Png(),
            saved(GREY.convert("LA"), "PNG"),
            1,
            "(12, 20, 4), and the schema says uint8 (None, None, 1): its alpha would be lost.",
        ),
        (
            Png(),
            saved(COLOURS.quantize(4), "PNG"),
            1,
            "(12, 20, 3), and the schema says uint8 (None, None, 1): its colours would be lost.",
        ),
        (
            Png(),
            saved(COLOURS.quantize(4), "PNG", transparency=1),
            3,
            "(12, 20, 4), and the schema says uint8 (None, None, 3): its alpha would be lost.",
        ),
        (
            Png(),
            saved(COLOURS, "PNG", transparency=(1, 2, 3)),
            3,
            "(12, 20, 4), and the schema says uint8 (None, None, 3): its alpha would be lost.",
        ),
        (
            Jpeg(),
            saved(COLOURS, "JPEG"),
            1,
            "(12, 20, 3), and the schema says uint8 (None, None, 1): its colours would be lost.",
        ),
        (
            Jpeg(),
            saved(COLOURS.convert("CMYK"), "JPEG"),
            1,
            "(12, 20, 3), and the schema says uint8 (None, None, 1): its colours would be lost.",
        ),
        (
            Webp(),
            saved(WITH_ALPHA, "WEBP"),
            3,
            "(12, 20, 4), and the schema says uint8 (None, None, 3): its alpha would be lost.",
        ),
        (
            Webp(),
            saved(WITH_ALPHA, "WEBP", lossless=True),
            3,
            "(12, 20, 4), and the schema says uint8 (None, None, 3): its alpha would be lost.",
        ),
        (
            Webp(),
            saved(WITH_ALPHA, "WEBP"),
            1,
            "(12, 20, 4), and the schema says uint8 (None, None, 1): its alpha would be lost.",
        ),
        (
            Webp(),
            saved(COLOURS, "WEBP"),
            1,
            "(12, 20, 3), and the schema says uint8 (None, None, 1): its colours would be lost.",
        ),
    ],
)
def test_losing_alpha_or_colours_raises(codec: Any, cell: memoryview, channels: int, problem: str) -> None:
    """Alpha or colours that the field cannot hold raise an error with both shapes."""
    with pytest.raises(CellProblem) as caught:
        decode(codec, cell, channels)

    assert str(caught.value) == "it holds uint8 " + problem + REMEDY


def test_a_grey_png_with_a_transparent_colour_raises() -> None:
    """OpenCV drops the transparent colour of a grey PNG, so such an image raises."""
    cell = saved(GREY, "PNG", transparency=60)

    with pytest.raises(CellProblem) as caught:
        decode(Png(), cell, None)
    with pytest.raises(CellProblem, match="its alpha would be lost"):
        decode(Png(), cell, 1)

    assert str(caught.value) == (
        "OpenCV decodes it to uint8 (12, 20), and its header says 20 x 12 pixels and 4 channels of 8 bits. Rewrite it, with "
        "alpha as a channel."
    )


def test_bit_depths_are_not_converted() -> None:
    """Images of 16 bits raise for fields of 8 bits, and images of 8 bits for fields of 16 bits."""
    deep = saved(Image.fromarray(np.arange(240, dtype=np.uint16).reshape(12, 20) * 257), "PNG")

    assert decode(Png(), deep, dtype="uint16")[0, 5] == 5 * 257
    with pytest.raises(CellProblem) as caught:
        decode(Png(), deep)
    with pytest.raises(CellProblem) as other:
        decode(Png(), saved(GREY, "PNG"), dtype="uint16")

    assert str(caught.value) == "it holds uint16 (12, 20), and the schema says uint8 (None, None)." + REMEDY
    assert str(other.value) == "it holds uint8 (12, 20), and the schema says uint16 (None, None)." + REMEDY


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("size", [(12, 20), (1, 1), (7, 3), (33, 65)])
def test_jpegs_of_others_are_read_as_by_pillow(subsampling: int, progressive: bool, size: tuple[int, int]) -> None:  # noqa: FBT001
    """Progressive JPEGs, usual subsamplings and odd sizes give the pixels of Pillow, except for rounding."""
    cell = saved(Image.fromarray(smooth(*size)), "JPEG", quality=90, progressive=progressive, subsampling=subsampling)

    assert mean_difference(decode(Jpeg(), cell, 3), np.asarray(Image.open(io.BytesIO(cell)))) < 1


def test_cmyk_becomes_rgb() -> None:
    """A JPEG in CMYK is read as RGB."""
    cell = saved(COLOURS.convert("CMYK"), "JPEG", quality=95)

    assert mean_difference(decode(Jpeg(), cell, 3), np.asarray(COLOURS)) < 4
    assert decode(Jpeg(), cell, None).shape == (12, 20, 3)


def test_a_jpeg_of_unusual_subsampling_is_read() -> None:
    """OpenCV decodes subsamplings that TurboJPEG does not know, at full size and shrunk."""
    cell = bytearray(saved(Image.fromarray(smooth(32, 32)), "JPEG", quality=95, subsampling=2))
    frame = cell.index(b"\xff\xc0")
    cell[frame + 11], cell[frame + 14], cell[frame + 17] = 0x22, 0x21, 0x12
    pixels = cv2.imdecode(np.frombuffer(bytes(cell), np.uint8), cv2.IMREAD_COLOR)[..., ::-1]

    np.testing.assert_array_equal(decode(Jpeg(), memoryview(cell), 3), pixels)
    assert decode(Jpeg(shrink_to=(10, 10)), memoryview(cell), 3).shape == (12, 12, 3)


def test_images_are_not_turned_by_default() -> None:
    """Without `orient` the EXIF orientation is ignored in every format."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for codec, kind in ((Jpeg(), "JPEG"), (Png(), "PNG"), (Webp(), "WEBP")):
        assert decode(codec, saved(COLOURS, kind, exif=exif), 3).shape == (12, 20, 3)


@pytest.mark.parametrize(("lossless", "alpha"), [(False, False), (False, True), (True, False), (True, True)])
def test_webps_of_others_are_read(lossless: bool, alpha: bool) -> None:  # noqa: FBT001
    """All three kinds of header of a WebP are read."""
    image = WITH_ALPHA if alpha else COLOURS
    cell = saved(image, "WEBP", lossless=lossless, quality=95, exact=True)

    found = decode(Webp(), cell, None)

    assert found.shape == (12, 20, 4 if alpha else 3)
    assert mean_difference(found, np.asarray(image)) < (0.1 if lossless else 6)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_avifs_of_others_are_read(mode: str) -> None:
    """AVIF images of another writer are read. Pillow stores grey as colours."""
    pytest.importorskip("PIL.AvifImagePlugin", reason="Pillow before 11.3 has no AVIF")
    if not cv2.haveImageWriter("image.avif"):
        pytest.skip("this OpenCV was built without AVIF")
    image = WITH_ALPHA.convert(mode)

    found = decode(Avif(), saved(image, "AVIF", quality=95), 4 if mode == "RGBA" else 3)

    assert mean_difference(found, np.asarray(image.convert("RGBA" if mode == "RGBA" else "RGB"))) < 4
