"""Image codecs: PNG, JPEG, WebP and AVIF. In memory, channels are always in the order RGB or RGBA."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from penstock._blobs import Blobs
from penstock.codecs.image import headers, pixels, png
from penstock.codecs.image.base import GREY, RGB, ImageCodec, channels_in, check_bool, is_whole, set_integer
from penstock.codecs.image.headers import SIDEWAYS, UPRIGHT, ImageError, ImageHeader
from penstock.errors import ArgumentError
from penstock.schema import CellProblem, Field

__all__ = ["CODECS", "Avif", "Jpeg", "Png", "Webp"]


@dataclass(frozen=True, repr=False)
class Png(ImageCodec):
    """Lossless images of 8 or 16 bits: grey, RGB or RGBA.

    Args:
        compression: 0 does not compress; 9 is slow and gives the fewest bytes. 1 is OpenCV's default: it writes a photo in
            less than half the time of 2 and above, with about as many bytes.
        orient: Whether images are rotated and mirrored by their EXIF orientation. By default they are returned as stored.

    Raises:
        ArgumentError: If `compression` is not an integer from 0 to 9, or `orient` is not a bool.

    Example:
        >>> Png(compression=9)
        Png(compression=9)
        >>> Field("image", "uint16", (None, None, 3), Png()).codec
        Png(compression=1)
    """

    name = "png"
    title = "PNG"
    dtypes = ("uint8", "uint16")
    longest = 1_000_000
    compression: int = 1
    orient: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check the options."""
        set_integer(self, "compression", 0, 9)
        check_bool(self, "orient")

    def _encoded(self, cell: npt.NDArray[Any]) -> bytes:
        # With an explicit level OpenCV tries all PNG filters on each row, also with the level that is its default.
        return pixels.write("PNG", cell, {} if self.compression == 1 else {"IMWRITE_PNG_COMPRESSION": self.compression})

    def _header(self, cell: memoryview) -> ImageHeader:
        return headers.png(cell)

    def _orientation(self, cell: memoryview) -> int:
        return headers.png_orientation(cell)

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode images of one size into the rows of an array; the rows of nulls are left unchanged.

        Raises:
            CellProblem: If an image cannot be decoded, or does not fit the field.
            MissingExtraError: If the library is not installed.
        """
        if self.orient:
            super().decode_into(field, cells, out)
            return
        decoder = png.BatchDecoder(out)
        for row, cell in cells.present():
            if decoder.decode(row, cell):
                continue
            try:
                self._into(field, cell, out[row], cells.max_cell_bytes)
            except ImageError as problem:
                raise CellProblem(row, str(problem)) from problem
            decoder.accept(cell)

    def _rgb(
        self, field: Field, cell: memoryview, header: ImageHeader, channels: int | None, out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        if channels in {None, header.channels}:
            image = png.read(cell, pixels.shape_of(header), field.dtype)
            if image is not None:
                return image if out is None else pixels.store(image, out)
        return super()._rgb(field, cell, header, channels, out)


@dataclass(frozen=True, repr=False)
class Jpeg(ImageCodec):
    """Lossy photos, grey or RGB. Colours are subsampled to half the height and half the width (4:2:0).

    A damaged or truncated image is an error, even if some of its pixels could be decoded.

    Args:
        quality: 1 gives the fewest bytes, 100 the best image.
        shrink_to: The smallest height and width that are enough. Images are decoded at the smallest of 1/8, 2/8 ... 8/8 of
            their size that is not below it, which takes less time and memory. Stored images do not change.
        orient: Whether images are rotated and mirrored by their EXIF orientation. By default they are returned as stored.
            With it, `shrink_to` and the shape of the field describe the rotated image.

    Raises:
        ArgumentError: If `quality` is not an integer from 1 to 100, `shrink_to` is not a height and a width, or `orient` is
            not a bool.

    Example:
        >>> Jpeg(quality=90, shrink_to=(224, 224))
        Jpeg(quality=90, shrink_to=(224, 224))
        >>> Jpeg(orient=True)
        Jpeg(quality=80, shrink_to=None, orient=True)
    """

    name = "jpeg"
    title = "JPEG"
    channels = (GREY, RGB)
    longest = 65500
    quality: int = 80
    shrink_to: tuple[int, int] | None = None
    orient: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check the options."""
        set_integer(self, "quality", 1, 100)
        check_bool(self, "orient")
        size: Any = self.shrink_to
        if size is None:
            return
        pair = isinstance(size, list | tuple) and len(size) == 2  # noqa: PLR2004 - height and width
        if not (pair and all(is_whole(side, 1, self.longest) for side in size)):
            msg = (
                f"Jpeg() got shrink_to={size!r}; expected a height and a width from 1 to {self.longest}, for example "
                "Jpeg(shrink_to=(224, 224))."
            )
            raise ArgumentError(msg)
        object.__setattr__(self, "shrink_to", (int(size[0]), int(size[1])))

    def check(self, field: Field) -> None:
        """Check that this codec can store the field.

        Raises:
            ArgumentError: If the dtype or the shape is not that of an image, or both the field and `shrink_to` give a size.
        """
        super().check(field)
        if self.shrink_to is not None and field.shape[:2] != (None, None):
            msg = (
                f"Field {field.name!r} has the fixed shape {field.shape}, and {self!r} gives images of different sizes. Use "
                f"the shape {(None, None, *field.shape[2:])}, or remove shrink_to."
            )
            raise ArgumentError(msg)

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode images of one size into the rows of an array; the rows of nulls are left unchanged.

        Raises:
            CellProblem: If an image cannot be decoded, or does not fit the field.
            MissingExtraError: If the library is not installed.
        """
        decode = pixels.turbojpeg().decode_jpeg
        order = pixels.ORDERS[out.shape[3] if out.ndim > 3 else GREY]  # noqa: PLR2004 - rows, height and width come first
        checked, size = b"", 0
        for row, cell in cells.present():
            # Images of one writer have the same first bytes; a header that was checked is not parsed again.
            if size and bytes(cell[:size]) == checked:
                try:
                    decode(cell, order, buffer=out[row])
                except ValueError:
                    pass  # the code below finds the reason
                else:
                    continue
            try:
                self._into(field, cell, out[row], cells.max_cell_bytes)
            except ImageError as problem:
                raise CellProblem(row, str(problem)) from problem
            if self.shrink_to is None and not self.orient:
                checked = headers.jpeg_prefix(cell)
                size = len(checked)

    def _encoded(self, cell: npt.NDArray[Any]) -> bytes:
        return pixels.write_jpeg(cell, self.quality)

    def _header(self, cell: memoryview) -> ImageHeader:
        return headers.jpeg(cell)

    def _orientation(self, cell: memoryview) -> int:
        return headers.jpeg_orientation(cell)

    def _fresh(self, field: Field, cell: memoryview, max_cell_bytes: int) -> npt.NDArray[Any]:
        header = self._checked_header(field, cell, channels_in(field), max_cell_bytes)
        orientation = self._applied_orientation(cell)
        headers.check_size(field, headers.oriented(header, orientation), field.shape[:2])
        size = pixels.scaled_size(header, _stored_size(self.shrink_to, orientation))
        image = pixels.oriented(pixels.read_jpeg(cell, header, channels_in(field) or header.channels, size), orientation)
        return image if len(field.shape) == image.ndim else image[..., 0]

    def _into(self, field: Field, cell: memoryview, out: npt.NDArray[Any], max_cell_bytes: int) -> None:
        channels = pixels.channels_of(out)
        header = self._checked_header(field, cell, channels, max_cell_bytes)
        orientation = self._applied_orientation(cell)
        size = pixels.scaled_size(header, _stored_size(self.shrink_to, orientation))
        small = header._replace(height=size[0], width=size[1])
        headers.check_size(field, headers.oriented(small, orientation), out.shape[:2])
        if orientation == UPRIGHT:
            pixels.read_jpeg(cell, header, channels, size, out)
        else:
            pixels.store(pixels.oriented(pixels.read_jpeg(cell, header, channels, size), orientation), out)

    def _resized(self, field: Field, cell: memoryview, out: npt.NDArray[Any], max_cell_bytes: int) -> None:
        channels = pixels.channels_of(out)
        header = self._checked_header(field, cell, channels, max_cell_bytes)
        orientation = self._applied_orientation(cell)
        size = pixels.scaled_size(header, _stored_size(out.shape[:2], orientation))
        if orientation == UPRIGHT and size == out.shape[:2]:
            pixels.read_jpeg(cell, header, channels, size, out)
        else:
            pixels.resize_into(pixels.oriented(pixels.read_jpeg(cell, header, channels, size), orientation), out)


def _stored_size(size: Any, orientation: int) -> Any:
    """Return the size as stored of an image that has `size` once it is oriented."""
    return size[::-1] if size is not None and orientation in SIDEWAYS else size


@dataclass(frozen=True, repr=False)
class Webp(ImageCodec):
    """Lossy or lossless images: RGB, RGBA, or grey, which is stored as RGB.

    If the field does not fix the number of channels, grey images are returned as the stored RGB. An alpha channel that is
    255 everywhere is not stored; it is restored if the field has four channels.

    Args:
        quality: 1 gives the fewest bytes, 100 the best image.
        lossless: Whether pixels are stored exactly; `quality` is then ignored.
        orient: Whether images are rotated and mirrored by their EXIF orientation. By default they are returned as stored.

    Raises:
        ArgumentError: If `quality` is not an integer from 1 to 100, or `lossless` or `orient` is not a bool.

    Example:
        >>> Webp(lossless=True)
        Webp(quality=80, lossless=True)
    """

    name = "webp"
    title = "WebP"
    longest = 16383
    quality: int = 80
    lossless: bool = False
    orient: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check the options."""
        set_integer(self, "quality", 1, 100)
        check_bool(self, "lossless")
        check_bool(self, "orient")

    def _encoded(self, cell: npt.NDArray[Any]) -> bytes:
        return pixels.write("WebP", cell, pixels.webp_options(cell, self.quality, lossless=self.lossless))

    def _header(self, cell: memoryview) -> ImageHeader:
        return headers.webp(cell)

    def _orientation(self, cell: memoryview) -> int:
        return headers.webp_orientation(cell)

    def _checked_header(self, field: Field, cell: memoryview, channels: int | None, max_cell_bytes: int) -> ImageHeader:
        return super()._checked_header(field, cell, RGB if channels == GREY else channels, max_cell_bytes)

    def _read(self, field: Field, cell: memoryview, header: ImageHeader, channels: int | None) -> npt.NDArray[Any]:
        image = super()._read(field, cell, header, channels)
        if channels != GREY:
            return image
        grey = pixels.to_grey(image)
        if grey is None:
            raise headers.mismatch(field, header, ": its colours would be lost")
        return grey


@dataclass(frozen=True, repr=False)
class Avif(ImageCodec):
    """Photos of 8 bits, grey, RGB or RGBA: smaller than JPEG, and slower to write and to read.

    Args:
        quality: 1 gives the fewest bytes, 100 the best image.

    Raises:
        ArgumentError: If `quality` is not an integer from 1 to 100.

    Example:
        >>> Avif(quality=60)
        Avif(quality=60)
    """

    name = "avif"
    title = "AVIF"
    longest = 65535
    quality: int = 80

    def __post_init__(self) -> None:
        """Check the options."""
        set_integer(self, "quality", 1, 100)

    def _encoded(self, cell: npt.NDArray[Any]) -> bytes:
        return pixels.write("AVIF", cell, {"IMWRITE_AVIF_QUALITY": self.quality})

    def _header(self, cell: memoryview) -> ImageHeader:
        from penstock.codecs.image import avif

        return avif.header(cell)


CODECS = (Png, Jpeg, Webp, Avif)
