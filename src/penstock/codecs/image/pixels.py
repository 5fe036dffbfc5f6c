"""Calls of OpenCV, libjpeg-turbo and libpng. Only this module handles OpenCV's channel order, BGR."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.codecs.image.headers import SIDEWAYS, UPRIGHT, ImageError, ImageHeader, damaged
from penstock.errors import MissingExtraError

Pixels = npt.NDArray[Any]
Size = tuple[int, int]

TO_RGB = {
    (1, 3): "COLOR_GRAY2RGB",
    (1, 4): "COLOR_GRAY2RGBA",
    (3, 3): "COLOR_BGR2RGB",
    (3, 4): "COLOR_BGR2RGBA",
    (4, 4): "COLOR_BGRA2RGBA",
}
ORDERS = {1: "GRAY", 3: "RGB", 4: "RGBA"}
FLIPS = {2: 1, 3: -1, 4: 0, 5: None, 6: 1, 7: -1, 8: 0}
"""The flip code of OpenCV for each EXIF orientation, after height and width are swapped: 0 vertical, 1 horizontal."""

TO_BGR = {3: "COLOR_RGB2BGR", 4: "COLOR_RGBA2BGRA"}
MISSING = "Images need simplejpeg and OpenCV, which are not installed. Install them: pip install 'penstock[image]'"


def opencv() -> Any:
    """Return the module of OpenCV."""
    try:
        import cv2
    except ImportError as error:
        raise MissingExtraError(MISSING) from error
    return cv2


def turbojpeg() -> Any:
    """Return the module simplejpeg."""
    try:
        import simplejpeg
    except ImportError as error:
        raise MissingExtraError(MISSING) from error
    return simplejpeg


def png_decoder() -> Callable[..., Any] | None:
    """Return the function of imagecodecs that decodes a PNG into an array; None if it is not installed."""
    try:
        from imagecodecs import PNG, png_decode
    except ImportError:
        return None
    decode: Callable[..., Any] | None = png_decode if PNG.available else None
    return decode


def check_build(title: str) -> None:
    """Check that OpenCV was built with a format."""
    cv2 = opencv()
    if not _can_write(title, cv2.haveImageWriter):
        msg = f"OpenCV {cv2.__version__} was built without {title}. Install one that has it: pip install -U 'penstock[image]'"
        raise MissingExtraError(msg)


@cache
def _can_write(title: str, have_writer: Callable[[str], bool]) -> bool:
    """Return whether OpenCV writes a format; the call takes as long as encoding a small image, so it is cached."""
    return have_writer(f"image.{title.lower()}")


def read(cell: memoryview, header: ImageHeader, title: str) -> Pixels:
    """Return an image in OpenCV's form: grey with two dimensions, colours in the order BGR.

    `IMREAD_UNCHANGED` preserves depth and alpha, and ignores the EXIF orientation.
    """
    cv2 = opencv()
    try:
        image = cv2.imdecode(np.frombuffer(cell, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise damaged(title, f"OpenCV says {str(error).strip()!r}") from error
    if image is None:
        check_build(title)
        raise damaged(title, "OpenCV cannot decode it")
    real = header_of(image)
    if real != (header if header.exact else header._replace(height=real.height, width=real.width, exact=True)):
        msg = (
            f"OpenCV decodes it to {image.dtype} {image.shape}, and its header says {header.width} x {header.height} "
            f"pixels and {header.channels} channels of {8 * header.itemsize} bits. Rewrite it, with alpha as a channel."
        )
        raise ImageError(msg)
    return image  # type: ignore[no-any-return]


def read_ordered(cell: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Pixels | None:
    """Return an image of a shape in the order RGB, or None if OpenCV cannot decode it in that order."""
    cv2 = opencv()
    how = cv2.IMREAD_UNCHANGED
    if shape[2:]:  # no grey
        if shape[2:] != (3,) or dtype.itemsize > 1 or not hasattr(cv2, "IMREAD_COLOR_RGB"):
            return None
        how = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image: Pixels | None = cv2.imdecode(np.frombuffer(cell, np.uint8), how)
    except cv2.error:
        return None
    return image if image is not None and image.shape == shape and image.dtype == dtype else None


def channels_of(pixels: Pixels) -> int:
    """Return the number of channels of an image."""
    return 1 if pixels.ndim == 2 else pixels.shape[2]  # noqa: PLR2004 - rows and columns alone


def shape_of(header: ImageHeader) -> tuple[int, ...]:
    """Return the shape of an image's pixels; grey has two dimensions."""
    return (header.height, header.width) if header.channels == 1 else (header.height, header.width, header.channels)


def header_of(pixels: Pixels) -> ImageHeader:
    """Return the header that describes a decoded image."""
    return ImageHeader(pixels.shape[0], pixels.shape[1], channels_of(pixels), pixels.itemsize)


def to_rgb(image: Pixels, channels: int | None, out: Pixels | None = None) -> Pixels:
    """Return an image of OpenCV in the order RGB with as many channels, in `out` if given."""
    cv2 = opencv()
    has = channels_of(image)
    wanted = channels or has
    if wanted == has == 1:
        return image if out is None else store(image, out)
    rgb = cv2.cvtColor(image, getattr(cv2, TO_RGB[has, wanted]), dst=dense(out))
    return rgb if out is None else store(rgb, out)


def to_grey(image: Pixels) -> Pixels | None:
    """Return an image of three equal channels as grey, or None if it has colours.

    WebP stores grey as three channels, and its lossy kind rounds them by one.
    """
    cv2 = opencv()
    blue, green, red = cv2.split(image)
    difference = max(cv2.norm(blue, green, cv2.NORM_INF), cv2.norm(red, green, cv2.NORM_INF))
    return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if difference <= 1 else None


def dense(out: Pixels | None) -> Pixels | None:
    """Return an array if a library can write to it directly, else None: the result is then copied."""
    return out if out is not None and out.flags.c_contiguous else None


def store(image: Pixels, out: Pixels) -> Pixels:
    """Copy an image into `out`, unless OpenCV has written it there already, and return `out`."""
    if not np.may_share_memory(image, out):
        np.copyto(out, image.reshape(out.shape))
    return out


def oriented(image: Pixels, orientation: int) -> Pixels:
    """Return an image rotated and mirrored by its EXIF orientation, as a copy unless that is 1."""
    if orientation == UPRIGHT:
        return image
    cv2 = opencv()
    upright = cv2.transpose(image) if orientation in SIDEWAYS else image
    flip = FLIPS[orientation]
    upright = upright if flip is None else cv2.flip(upright, flip)
    result: Pixels = upright.reshape(*upright.shape[:2], *image.shape[2:])  # OpenCV drops a single channel
    return result


def resize_into(image: Pixels, out: Pixels) -> None:
    """Resize an image to the size of `out`: by area to make it smaller, linearly to make it larger."""
    cv2 = opencv()
    height, width = out.shape[:2]
    smaller = (min(width, image.shape[1]), min(height, image.shape[0]))
    if smaller != (width, height) and smaller != (image.shape[1], image.shape[0]):
        image = cv2.resize(image, smaller, interpolation=cv2.INTER_AREA)
    if image.shape[:2] == (height, width):
        store(image, out)
        return
    how = cv2.INTER_AREA if smaller == (width, height) else cv2.INTER_LINEAR
    store(cv2.resize(image, (width, height), dst=dense(out), interpolation=how), out)


def write(title: str, pixels: Pixels, options: dict[str, int]) -> bytes:
    """Return an image, given in the order RGB, as OpenCV encodes it."""
    cv2 = opencv()
    check_build(title)
    channels = channels_of(pixels)
    bgr = cv2.cvtColor(pixels, getattr(cv2, TO_BGR[channels])) if channels > 1 else pixels
    flags = [number for name, value in options.items() for number in (getattr(cv2, name), value)]
    try:
        success, encoded = cv2.imencode(f".{title.lower()}", bgr, flags)
    except cv2.error as error:
        raise ImageError(str(error).strip()) from error
    if not success:
        raise ImageError("OpenCV gave no reason")
    return bytes(encoded)


def webp_options(pixels: Pixels, quality: int, *, lossless: bool) -> dict[str, int]:
    """Return the options with which OpenCV writes a WebP of a quality, or a lossless one."""
    if not lossless:
        return {"IMWRITE_WEBP_QUALITY": quality}
    if hasattr(opencv(), "IMWRITE_WEBP_LOSSLESS_MODE"):
        return {"IMWRITE_WEBP_LOSSLESS_MODE": opencv().IMWRITE_WEBP_LOSSLESS_PRESERVE_COLOR}
    if channels_of(pixels) == 4 and not pixels[..., 3].all():  # noqa: PLR2004 - red, green, blue and alpha
        msg = (
            f"OpenCV {opencv().__version__} loses the colours of pixels whose alpha is 0, so lossless=True is not possible. "
            "Install a newer one: pip install -U 'penstock[image]'; or use penstock.codecs.Png()."
        )
        raise MissingExtraError(msg)
    return {"IMWRITE_WEBP_QUALITY": 101}


def scaled_size(header: ImageHeader, at_least: Size | None) -> Size:
    """Return the smallest size, in eighths of the image's own, that libjpeg decodes to and that is not below `at_least`."""
    if at_least is not None:
        height, width = min(header.height, at_least[0]), min(header.width, at_least[1])
        for eighths in range(1, 8):
            size = -(-header.height * eighths // 8), -(-header.width * eighths // 8)
            if size[0] >= height and size[1] >= width:
                return size
    return header.height, header.width


def read_jpeg(cell: memoryview, header: ImageHeader, channels: int, size: Size, out: Pixels | None = None) -> Pixels:
    """Return a JPEG decoded at a size from `scaled_size`, in `out` if given."""
    buffer = dense(out)
    shape = (*size, channels)
    try:
        image = turbojpeg().decode_jpeg(cell, ORDERS[channels], min_height=size[0], min_width=size[1], buffer=buffer)
    except ValueError as error:
        image, buffer = _read_unusual_jpeg(cell, header, shape, error), None
    if image.shape != shape:
        raise damaged("JPEG", f"it decodes to {image.shape}, and its header says {shape}")
    return image if out is None else out if buffer is not None else store(image, out)


def _read_unusual_jpeg(cell: memoryview, header: ImageHeader, shape: tuple[int, int, int], error: ValueError) -> Pixels:
    """Return a JPEG whose chroma subsampling OpenCV supports and TurboJPEG does not."""
    if "subsampling" not in str(error) or bytes(cell[-2:]) != b"\xff\xd9":
        raise damaged("JPEG", f"libjpeg-turbo says {str(error)!r}") from error
    small = np.empty(shape, np.uint8)
    resize_into(to_rgb(read(cell, header, "JPEG"), shape[2]), small)
    return small


def write_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Return an image as JPEG with 4:2:0 chroma subsampling, the default of Pillow and OpenCV."""
    channels = channels_of(pixels)
    shaped = pixels.reshape(*pixels.shape[:2], channels)
    return bytes(turbojpeg().encode_jpeg(shaped, quality, ORDERS[channels], "GRAY" if channels == 1 else "420"))
