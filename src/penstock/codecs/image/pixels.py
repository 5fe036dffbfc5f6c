"""Pixels in and out of OpenCV, libjpeg-turbo and libpng: the one place that knows that OpenCV's colours stand as BGR."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.codecs.image.headers import SIDEWAYS, UPRIGHT, Header, ImageError, damaged
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
"""How OpenCV mirrors an image of each EXIF orientation, once its sides are swapped: 0 is upside down, 1 left to right."""

TO_BGR = {3: "COLOR_RGB2BGR", 4: "COLOR_RGBA2BGRA"}
MISSING = "Images need simplejpeg and OpenCV, which are not installed. Install them: pip install 'penstock[image]'"


def opencv() -> Any:
    """Return OpenCV."""
    try:
        import cv2
    except ImportError as error:
        raise MissingExtraError(MISSING) from error
    return cv2


def turbojpeg() -> Any:
    """Return simplejpeg."""
    try:
        import simplejpeg
    except ImportError as error:
        raise MissingExtraError(MISSING) from error
    return simplejpeg


def straight_png() -> Callable[..., Any] | None:
    """Return what decodes a PNG to where its pixels belong, without a copy; None where imagecodecs is not installed."""
    try:
        from imagecodecs import PNG, png_decode
    except ImportError:
        return None
    found: Callable[..., Any] | None = png_decode if PNG.available else None
    return found


def check_build(title: str) -> None:
    """Refuse a build of OpenCV without a format."""
    cv2 = opencv()
    if not _can_write(title, cv2.haveImageWriter):
        msg = f"OpenCV {cv2.__version__} was built without {title}. Install one that has it: pip install -U 'penstock[image]'"
        raise MissingExtraError(msg)


@cache
def _can_write(title: str, ask: Callable[[str], bool]) -> bool:
    """Return whether OpenCV says that it writes a format, which it takes as long to say as to write a small image."""
    return ask(f"image.{title.lower()}")


def read(cell: memoryview, header: Header, title: str) -> Pixels:
    """Return an image as OpenCV has it: grey has two dimensions, colours stand in the order BGR.

    `IMREAD_UNCHANGED` keeps depth and alpha, and turns nothing that says that it was taken upside down.
    """
    cv2 = opencv()
    try:
        found = cv2.imdecode(np.frombuffer(cell, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise damaged(title, f"OpenCV says {str(error).strip()!r}") from error
    if found is None:
        check_build(title)
        raise damaged(title, "OpenCV cannot decode it")
    real = header_of(found)
    if real != (header if header.exact else header._replace(height=real.height, width=real.width, exact=True)):
        msg = (
            f"it is decoded by OpenCV to {found.dtype} {found.shape}, and its header says {header.width} x {header.height} "
            f"pixels and {header.channels} channels of {8 * header.itemsize} bits. Write it anew, alpha as a channel."
        )
        raise ImageError(msg)
    return found  # type: ignore[no-any-return]


def read_ordered(cell: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Pixels | None:
    """Return an image of a shape that OpenCV decodes in the order in which we have it; None where it does not."""
    cv2 = opencv()
    how = cv2.IMREAD_UNCHANGED
    if shape[2:]:  # no grey
        if shape[2:] != (3,) or dtype.itemsize > 1 or not hasattr(cv2, "IMREAD_COLOR_RGB"):
            return None
        how = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        found: Pixels | None = cv2.imdecode(np.frombuffer(cell, np.uint8), how)
    except cv2.error:
        return None
    return found if found is not None and found.shape == shape and found.dtype == dtype else None


def channels_of(pixels: Pixels) -> int:
    """Return how many channels an image has."""
    return 1 if pixels.ndim == 2 else pixels.shape[2]  # noqa: PLR2004 - rows and columns alone


def shape_of(header: Header) -> tuple[int, ...]:
    """Return the shape of an image's pixels; grey has two dimensions."""
    return (header.height, header.width) if header.channels == 1 else (header.height, header.width, header.channels)


def header_of(pixels: Pixels) -> Header:
    """Return what an image is."""
    return Header(pixels.shape[0], pixels.shape[1], channels_of(pixels), pixels.itemsize)


def to_rgb(found: Pixels, channels: int | None, out: Pixels | None = None) -> Pixels:
    """Return what OpenCV read in the order RGB, in `out` where it is given; nothing may be lost by it, as the header told."""
    cv2 = opencv()
    has = channels_of(found)
    wanted = channels or has
    if wanted == has == 1:
        return found if out is None else stored(found, out)
    turned = cv2.cvtColor(found, getattr(cv2, TO_RGB[has, wanted]), dst=dense(out))
    return turned if out is None else stored(turned, out)


def grey_of(found: Pixels) -> Pixels | None:
    """Return the grey image that a coloured one is, or None if it has colours.

    WebP stores grey as three channels, and its lossy kind rounds them by one.
    """
    cv2 = opencv()
    blue, green, red = cv2.split(found)
    apart = max(cv2.norm(blue, green, cv2.NORM_INF), cv2.norm(red, green, cv2.NORM_INF))
    return cv2.cvtColor(found, cv2.COLOR_BGR2GRAY) if apart <= 1 else None


def dense(out: Pixels | None) -> Pixels | None:
    """Return an array that a library can write to as it lies, or None: then what it gives is copied."""
    return out if out is not None and out.flags.c_contiguous else None


def stored(found: Pixels, out: Pixels) -> Pixels:
    """Return `out` with an image of its size in it, where OpenCV has not written it there already."""
    if not np.may_share_memory(found, out):
        np.copyto(out, found.reshape(out.shape))
    return out


def turned(found: Pixels, orientation: int) -> Pixels:
    """Return an image turned and mirrored as its EXIF orientation says, in memory of its own unless that is 1."""
    if orientation == UPRIGHT:
        return found
    cv2 = opencv()
    upright = cv2.transpose(found) if orientation in SIDEWAYS else found
    flip = FLIPS[orientation]
    upright = upright if flip is None else cv2.flip(upright, flip)
    made: Pixels = upright.reshape(*upright.shape[:2], *found.shape[2:])  # OpenCV drops a single channel
    return made


def resized(found: Pixels, out: Pixels) -> None:
    """Bring an image to the size of `out`: by areas where it shrinks, which keeps every pixel, else between neighbours."""
    cv2 = opencv()
    height, width = out.shape[:2]
    least = (min(width, found.shape[1]), min(height, found.shape[0]))
    if least != (width, height) and least != (found.shape[1], found.shape[0]):
        found = cv2.resize(found, least, interpolation=cv2.INTER_AREA)
    if found.shape[:2] == (height, width):
        stored(found, out)
        return
    how = cv2.INTER_AREA if least == (width, height) else cv2.INTER_LINEAR
    stored(cv2.resize(found, (width, height), dst=dense(out), interpolation=how), out)


def write(title: str, pixels: Pixels, options: dict[str, int]) -> bytes:
    """Return an image, in the order RGB, as OpenCV stores it."""
    cv2 = opencv()
    check_build(title)
    channels = channels_of(pixels)
    turned = cv2.cvtColor(pixels, getattr(cv2, TO_BGR[channels])) if channels > 1 else pixels
    chosen = [number for name, value in options.items() for number in (getattr(cv2, name), value)]
    try:
        good, found = cv2.imencode(f".{title.lower()}", turned, chosen)
    except cv2.error as error:
        raise ImageError(str(error).strip()) from error
    if not good:
        raise ImageError("OpenCV did not say why")
    return bytes(found)


def webp_options(pixels: Pixels, quality: int, *, lossless: bool) -> dict[str, int]:
    """Return what makes OpenCV write a WebP of a quality, or one without loss."""
    if not lossless:
        return {"IMWRITE_WEBP_QUALITY": quality}
    if hasattr(opencv(), "IMWRITE_WEBP_LOSSLESS_MODE"):
        return {"IMWRITE_WEBP_LOSSLESS_MODE": opencv().IMWRITE_WEBP_LOSSLESS_PRESERVE_COLOR}
    if channels_of(pixels) == 4 and not pixels[..., 3].all():  # noqa: PLR2004 - red, green, blue and alpha
        msg = (
            f"OpenCV {opencv().__version__} loses the colours of pixels whose alpha is 0, and lossless=True was asked for. "
            "Install a newer one: pip install -U 'penstock[image]'; or use penstock.codecs.Png()."
        )
        raise MissingExtraError(msg)
    return {"IMWRITE_WEBP_QUALITY": 101}


def scaled(header: Header, at_least: Size | None) -> Size:
    """Return the smallest size that libjpeg decodes to and that is not smaller than one, or the image's own.

    It makes an image smaller by eighths.
    """
    if at_least is not None:
        height, width = min(header.height, at_least[0]), min(header.width, at_least[1])
        for eighths in range(1, 8):
            size = -(-header.height * eighths // 8), -(-header.width * eighths // 8)
            if size[0] >= height and size[1] >= width:
                return size
    return header.height, header.width


def read_jpeg(cell: memoryview, header: Header, channels: int, size: Size, out: Pixels | None = None) -> Pixels:
    """Return a JPEG at a size that `scaled` gave, in `out` where it is given."""
    buffer = dense(out)
    shape = (*size, channels)
    try:
        found = turbojpeg().decode_jpeg(cell, ORDERS[channels], min_height=size[0], min_width=size[1], buffer=buffer)
    except ValueError as error:
        found, buffer = _read_odd_jpeg(cell, header, shape, error), None
    if found.shape != shape:
        raise damaged("JPEG", f"it decodes to {found.shape}, and its header says {shape}")
    return found if out is None else out if buffer is not None else stored(found, out)


def _read_odd_jpeg(cell: memoryview, header: Header, shape: tuple[int, int, int], error: ValueError) -> Pixels:
    """Return a JPEG whose colours are sampled in a way that TurboJPEG has no name for, and OpenCV reads nevertheless."""
    if "subsampling" not in str(error) or bytes(cell[-2:]) != b"\xff\xd9":
        raise damaged("JPEG", f"libjpeg-turbo says {str(error)!r}") from error
    small = np.empty(shape, np.uint8)
    resized(to_rgb(read(cell, header, "JPEG"), shape[2]), small)
    return small


def write_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Return an image as JPEG. Colours are halved both ways, as Pillow and OpenCV do."""
    channels = channels_of(pixels)
    shaped = pixels.reshape(*pixels.shape[:2], channels)
    return bytes(turbojpeg().encode_jpeg(shaped, quality, ORDERS[channels], "GRAY" if channels == 1 else "420"))
