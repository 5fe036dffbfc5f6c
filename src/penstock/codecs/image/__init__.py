"""Images: PNG, JPEG, WebP and AVIF, in memory always in the order RGB or RGBA."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from penstock._blobs import Blobs
from penstock.codecs.image import avif as _image_avif
from penstock.codecs.image import headers, pixels
from penstock.codecs.image import png as _png
from penstock.codecs.image import stored_png as _png_stored
from penstock.codecs.image.base import GREY, RGB, ImageCodec, channels_in, check_truth, is_whole, keep_whole
from penstock.codecs.image.headers import SIDEWAYS, UPRIGHT, Header, ImageError
from penstock.errors import ArgumentError
from penstock.schema import CellProblem, Field

__all__ = ["CODECS", "Avif", "Jpeg", "Png", "Webp"]


@dataclass(frozen=True, repr=False)
class Png(ImageCodec):
    """Images without loss, of 8 or 16 bits: grey, RGB or RGBA.

    Noise, which cannot be made smaller, is stored as it is unless a compression above 1 is asked for.

    Args:
        compression: 0 stores, 9 takes long and gives the least bytes. 1 is OpenCV's own choice: with it, writing a photo takes
            half the time of 2 and more, and gives about as many bytes.
        orient: Whether images are turned and mirrored as their EXIF orientation says. By default they come as they are stored.

    Raises:
        ArgumentError: If it is not a whole number from 0 to 9, or `orient` is neither True nor False.

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
        """Check what was given."""
        keep_whole(self, "compression", 0, 9)
        check_truth(self, "orient")

    def _written(self, cell: npt.NDArray[Any]) -> bytes:
        stores = self.compression == 0 or (self.compression == 1 and _png_stored.is_noise(cell))
        if stores and _png_stored.fits(cell):
            return _png_stored.write(cell)
        # Naming any level makes OpenCV try all filters of PNG for each row, also if it is the level that it takes by itself.
        return pixels.write("PNG", cell, {} if self.compression == 1 else {"IMWRITE_PNG_COMPRESSION": self.compression})

    def _header(self, cell: memoryview) -> Header:
        return headers.png(cell)

    def _orientation(self, cell: memoryview) -> int:
        return headers.png_orientation(cell)

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode images of one size into an array, a row each; null ones are left as they are.

        Raises:
            CellProblem: If one cannot be decoded, or is none of the field.
            MissingExtraError: If the library is not installed.
        """
        if self.orient:
            super().decode_into(field, cells, out)
            return
        left = _png_stored.decode_into(cells, out)
        alike = _png.Alike(out)
        for row in left.tolist():
            cell = cells[row]
            if alike.decode(row, cell):
                continue
            try:
                self._into(field, cell, out[row], cells.max_cell_bytes)
            except ImageError as problem:
                raise CellProblem(row, str(problem)) from problem
            alike.learn(cell)

    def _rgb(
        self, field: Field, cell: memoryview, header: Header, channels: int | None, out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        if channels in {None, header.channels}:
            shape = pixels.shape_of(header)
            found = _png_stored.read(cell, shape, field.dtype)
            if found is None:
                found = _png.read(cell, shape, field.dtype)
            if found is not None:
                return found if out is None else pixels.stored(found, out)
        return super()._rgb(field, cell, header, channels, out)


@dataclass(frozen=True, repr=False)
class Jpeg(ImageCodec):
    """Photos with a loss that is hard to see, grey or RGB; colours are stored at half the height and half the width.

    An image whose bytes are damaged or end too early is an error, also where some of its pixels could be had.

    Args:
        quality: 1 gives the least bytes, 100 the best image.
        shrink_to: Height and width that are enough: images are decoded at the smallest of 1/8, 2/8 ... 8/8 of their size that
            is not smaller, which takes less time and memory. It changes nothing in what is stored.
        orient: Whether images are turned and mirrored as their EXIF orientation says. By default they come as they are stored.
            Then `shrink_to` and the shape of the field are those of the turned image.

    Raises:
        ArgumentError: If the quality is not a whole number from 1 to 100, `shrink_to` no height and width, or `orient` neither
            True nor False.

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
        """Check what was given."""
        keep_whole(self, "quality", 1, 100)
        check_truth(self, "orient")
        given: Any = self.shrink_to
        if given is None:
            return
        pair = isinstance(given, list | tuple) and len(given) == 2  # noqa: PLR2004 - height and width
        if not (pair and all(is_whole(side, 1, self.longest) for side in given)):
            msg = (
                f"Jpeg got shrink_to={given!r}. A height and a width from 1 to {self.longest} were expected. Give them: "
                "Jpeg(shrink_to=(224, 224))."
            )
            raise ArgumentError(msg)
        object.__setattr__(self, "shrink_to", (int(given[0]), int(given[1])))

    def check(self, field: Field) -> None:
        """Refuse fields whose cells are no images that can be stored so.

        Raises:
            ArgumentError: If the dtype or the shape is none of an image, or the size is told twice.
        """
        super().check(field)
        if self.shrink_to is not None and field.shape[:2] != (None, None):
            msg = (
                f"Field {field.name!r} has the shape {field.shape}, and {self!r} gives images of several sizes. Give it the "
                f"shape {(None, None, *field.shape[2:])}, or leave shrink_to out."
            )
            raise ArgumentError(msg)

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode images of one size into an array, a row each; null ones are left as they are.

        Raises:
            CellProblem: If one cannot be decoded, or is none of the field.
            MissingExtraError: If the library is not installed.
        """
        decode = pixels.turbojpeg().decode_jpeg
        order = pixels.ORDERS[out.shape[3] if out.ndim > 3 else GREY]  # noqa: PLR2004 - rows, height and width come first
        checked, size = b"", 0
        for row, cell in cells.present():
            # Images of one writer begin alike. One that begins as another that was checked needs no look at its header.
            if size and bytes(cell[:size]) == checked:
                try:
                    decode(cell, order, buffer=out[row])
                except ValueError:
                    pass  # what is wrong with it is found out below
                else:
                    continue
            try:
                self._into(field, cell, out[row], cells.max_cell_bytes)
            except ImageError as problem:
                raise CellProblem(row, str(problem)) from problem
            if self.shrink_to is None and not self.orient:
                checked = headers.jpeg_begin(cell)
                size = len(checked)

    def _written(self, cell: npt.NDArray[Any]) -> bytes:
        return pixels.write_jpeg(cell, self.quality)

    def _header(self, cell: memoryview) -> Header:
        return headers.jpeg(cell)

    def _orientation(self, cell: memoryview) -> int:
        return headers.jpeg_orientation(cell)

    def _fresh(self, field: Field, cell: memoryview, max_cell_bytes: int) -> npt.NDArray[Any]:
        header = self._claims(field, cell, channels_in(field), max_cell_bytes)
        turn = self._turn(cell)
        headers.check_size(field, headers.turned(header, turn), field.shape[:2])
        size = pixels.scaled(header, _lying(self.shrink_to, turn))
        found = pixels.turned(pixels.read_jpeg(cell, header, channels_in(field) or header.channels, size), turn)
        return found if len(field.shape) == found.ndim else found[..., 0]

    def _into(self, field: Field, cell: memoryview, out: npt.NDArray[Any], max_cell_bytes: int) -> None:
        channels = pixels.channels_of(out)
        header = self._claims(field, cell, channels, max_cell_bytes)
        turn = self._turn(cell)
        size = pixels.scaled(header, _lying(self.shrink_to, turn))
        small = header._replace(height=size[0], width=size[1])
        headers.check_size(field, headers.turned(small, turn), out.shape[:2])
        if turn == UPRIGHT:
            pixels.read_jpeg(cell, header, channels, size, out)
        else:
            pixels.stored(pixels.turned(pixels.read_jpeg(cell, header, channels, size), turn), out)

    def _resized(self, field: Field, cell: memoryview, out: npt.NDArray[Any], max_cell_bytes: int) -> None:
        channels = pixels.channels_of(out)
        header = self._claims(field, cell, channels, max_cell_bytes)
        turn = self._turn(cell)
        size = pixels.scaled(header, _lying(out.shape[:2], turn))
        if turn == UPRIGHT and size == out.shape[:2]:
            pixels.read_jpeg(cell, header, channels, size, out)
        else:
            pixels.resized(pixels.turned(pixels.read_jpeg(cell, header, channels, size), turn), out)


def _lying(size: Any, turn: int) -> Any:
    """Return the size, before it is turned, of an image that has one afterwards."""
    return size[::-1] if size is not None and turn in SIDEWAYS else size


@dataclass(frozen=True, repr=False)
class Webp(ImageCodec):
    """Images with little loss or none: RGB or RGBA, and grey, which is stored as RGB.

    Where the field leaves the channels open, grey comes back as the RGB that is stored. Alpha that is 255
    everywhere is not stored, and comes back where the field says four channels.

    Args:
        quality: 1 gives the least bytes, 100 the best image.
        lossless: Whether every pixel comes back as it was; `quality` then says nothing.
        orient: Whether images are turned and mirrored as their EXIF orientation says. By default they come as they are stored.

    Raises:
        ArgumentError: If the quality is not a whole number from 1 to 100, or one of the others is neither True nor False.

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
        """Check what was given."""
        keep_whole(self, "quality", 1, 100)
        check_truth(self, "lossless")
        check_truth(self, "orient")

    def _written(self, cell: npt.NDArray[Any]) -> bytes:
        return pixels.write("WebP", cell, pixels.webp_options(cell, self.quality, lossless=self.lossless))

    def _header(self, cell: memoryview) -> Header:
        return headers.webp(cell)

    def _orientation(self, cell: memoryview) -> int:
        return headers.webp_orientation(cell)

    def _claims(self, field: Field, cell: memoryview, channels: int | None, max_cell_bytes: int) -> Header:
        return super()._claims(field, cell, RGB if channels == GREY else channels, max_cell_bytes)

    def _read(self, field: Field, cell: memoryview, header: Header, channels: int | None) -> npt.NDArray[Any]:
        found = super()._read(field, cell, header, channels)
        if channels != GREY:
            return found
        grey = pixels.grey_of(found)
        if grey is None:
            raise headers.differs(field, header, ": its colours would be lost")
        return grey


@dataclass(frozen=True, repr=False)
class Avif(ImageCodec):
    """Photos in fewer bytes than JPEG takes, which take longer to write and to read: grey, RGB or RGBA, of 8 bits.

    Args:
        quality: 1 gives the least bytes, 100 the best image.

    Raises:
        ArgumentError: If the quality is not a whole number from 1 to 100.

    Example:
        >>> Avif(quality=60)
        Avif(quality=60)
    """

    name = "avif"
    title = "AVIF"
    longest = 65535
    quality: int = 80

    def __post_init__(self) -> None:
        """Check what was given."""
        keep_whole(self, "quality", 1, 100)

    def _written(self, cell: npt.NDArray[Any]) -> bytes:
        return pixels.write("AVIF", cell, {"IMWRITE_AVIF_QUALITY": self.quality})

    def _header(self, cell: memoryview) -> Header:
        return _image_avif.header(cell)


CODECS = (Png, Jpeg, Webp, Avif)
