"""The base class of image codecs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock._blobs import MAX_CELL_BYTES, Blobs
from penstock.codecs.image import headers, pixels
from penstock.codecs.image.headers import UPRIGHT, ImageError, ImageHeader
from penstock.errors import ArgumentError
from penstock.schema import CellCodec, CellProblem, Field

GREY, RGB, RGBA = 1, 3, 4


class ImageCodec(CellCodec):
    """The base class of image codecs. It checks size and format of an image before it is decoded.

    Grey and palette images become RGB, and RGB becomes RGBA, if the field has as many channels. A conversion that would lose
    colours, alpha or depth is an error. The EXIF orientation is applied only with `orient=True`.
    """

    compressed = True

    title: ClassVar[str]
    channels: ClassVar[tuple[int, ...]] = (GREY, RGB, RGBA)
    dtypes: ClassVar[tuple[str, ...]] = ("uint8",)
    longest: ClassVar[int]
    orient: bool = False

    def __repr__(self) -> str:
        """Return the codec as Python; `orient` only if it is True."""
        fields = self.__dataclass_fields__  # type: ignore[attr-defined] # every codec is a dataclass
        options = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields if name != "orient" or self.orient)
        return f"{type(self).__name__}({options})"

    def options(self) -> Mapping[str, Any]:
        """Return the options stored with the table; `orient` only if it is True, as in tables that are older than it."""
        return {name: value for name, value in super().options().items() if name != "orient" or value}

    @abstractmethod
    def _encoded(self, cell: npt.NDArray[Any]) -> bytes:
        """Return an image as bytes; grey images have two dimensions."""

    @abstractmethod
    def _header(self, cell: memoryview) -> ImageHeader:
        """Return the size and format that an image declares."""

    def _orientation(self, cell: memoryview) -> int:  # noqa: ARG002 - codecs with EXIF override this
        """Return the EXIF orientation of an image, from 1 to 8."""
        return UPRIGHT

    def _applied_orientation(self, cell: memoryview) -> int:
        return self._orientation(cell) if self.orient else UPRIGHT

    def check(self, field: Field) -> None:
        """Check that this codec can store the field.

        Raises:
            ArgumentError: If the dtype or the shape is not that of an image.
        """
        if str(field.dtype) not in self.dtypes:
            known = " or ".join(self.dtypes)
            msg = f"Field {field.name!r} has dtype {field.dtype}, but {self.title} stores {known}. Use penstock.codecs.Npy()."
            raise ArgumentError(msg)
        size, channels = field.shape[:2], field.shape[2:]
        if len(size) != 2 or len(channels) > 1 or not {*channels} <= {None, *self.channels}:  # noqa: PLR2004 - height and width
            shapes = ", ".join(["(height, width)", *(f"(height, width, {count})" for count in self.channels)])
            msg = (
                f"Field {field.name!r} has shape {field.shape}, but {self.title} stores {shapes}; any of them can be None. "
                "Use one of these shapes, or penstock.codecs.Npy()."
            )
            raise ArgumentError(msg)
        if any(side is not None and not 1 <= side <= self.longest for side in size):
            msg = (
                f"Field {field.name!r} has shape {field.shape}, but {self.title} stores 1 to {self.longest} pixels on a side. "
                "Use penstock.codecs.Npy()."
            )
            raise ArgumentError(msg)

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return an image as bytes.

        Raises:
            ArgumentError: If the codec cannot store the image.
            MissingExtraError: If the library is not installed.
        """
        image = np.ascontiguousarray(cell, dtype=field.dtype)
        flat = image[..., 0] if image.shape[2:] == (GREY,) else image
        channels = pixels.channels_of(flat) if flat.ndim in (2, 3) else None
        if channels not in self.channels or not all(1 <= side <= self.longest for side in flat.shape[:2]):
            counts = " or ".join(map(str, self.channels))
            msg = (
                f"Column {field.name!r} got an image of shape {image.shape}, but {self.title} stores 1 to {self.longest} "
                f"pixels on a side and {counts} channels. Crop it, or use penstock.codecs.Npy()."
            )
            raise ArgumentError(msg)
        try:
            return self._encoded(flat)
        except ValueError as error:
            msg = (
                f"Column {field.name!r} got {image.dtype} {image.shape}, which cannot be encoded as {self.title}: {error}. "
                "Check the image, or use penstock.codecs.Npy()."
            )
            raise ArgumentError(msg) from error

    def decode(self, field: Field, cell: memoryview) -> npt.NDArray[Any]:
        """Return an image.

        Raises:
            CellProblem: If it cannot be decoded, or does not fit the field.
            MissingExtraError: If the library is not installed.
        """
        try:
            return self._fresh(field, cell, MAX_CELL_BYTES)
        except ImageError as problem:
            raise CellProblem(0, str(problem)) from problem

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Return a list of images, with None for nulls.

        Raises:
            CellProblem: If an image cannot be decoded, or does not fit the field.
            MissingExtraError: If the library is not installed.
        """
        images: list[Any] = [None] * len(cells)
        for row, cell in cells.present():
            try:
                images[row] = self._fresh(field, cell, cells.max_cell_bytes)
            except ImageError as problem:
                raise CellProblem(row, str(problem)) from problem
        return images

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode images of one size into the rows of an array; the rows of nulls are left unchanged.

        Raises:
            CellProblem: If an image cannot be decoded, or does not fit the field.
            MissingExtraError: If the library is not installed.
        """
        for row, cell in cells.present():
            try:
                self._into(field, cell, out[row], cells.max_cell_bytes)
            except ImageError as problem:
                raise CellProblem(row, str(problem)) from problem

    def decode_resized(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode images of any size, and resize each into a row of an array; the rows of nulls are left unchanged.

        Raises:
            CellProblem: If an image cannot be decoded, or has other channels or another depth than the field.
            MissingExtraError: If the library is not installed.
        """
        for row, cell in cells.present():
            try:
                self._resized(field, cell, out[row], cells.max_cell_bytes)
            except ImageError as problem:
                raise CellProblem(row, str(problem)) from problem

    def _checked_header(self, field: Field, cell: memoryview, channels: int | None, max_cell_bytes: int) -> ImageHeader:
        """Return the header of an image, after a check of its size and that the field can hold it without loss."""
        header = self._header(cell)
        headers.check_bytes(header, channels or GREY, max_cell_bytes)
        headers.check_kind(field, header, channels)
        return header

    def _read(self, field: Field, cell: memoryview, header: ImageHeader, channels: int | None) -> npt.NDArray[Any]:  # noqa: ARG002
        """Return an image in OpenCV's channel order."""
        return pixels.read(cell, header, self.title)

    def _rgb(
        self, field: Field, cell: memoryview, header: ImageHeader, channels: int | None, out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """Return an image in the order RGB with as many channels, in `out` if given, which must have its size."""
        image = self._read(field, cell, header, channels)
        if out is not None:
            headers.check_size(field, pixels.header_of(image), out.shape[:2])
        return pixels.to_rgb(image, channels, out)

    def _fresh(self, field: Field, cell: memoryview, max_cell_bytes: int) -> npt.NDArray[Any]:
        """Return an image in a new array."""
        channels = channels_in(field)
        header = self._checked_header(field, cell, channels, max_cell_bytes)
        orientation = self._applied_orientation(cell)
        headers.check_size(field, headers.oriented(header, orientation), field.shape[:2])
        image = pixels.oriented(self._rgb(field, cell, header, channels), orientation)
        headers.check_size(field, pixels.header_of(image), field.shape[:2])
        return image if len(field.shape) == image.ndim else image[..., np.newaxis]

    def _into(self, field: Field, cell: memoryview, out: npt.NDArray[Any], max_cell_bytes: int) -> None:
        """Decode an image into an array of the same size."""
        channels = pixels.channels_of(out)
        header = self._checked_header(field, cell, channels, max_cell_bytes)
        orientation = self._applied_orientation(cell)
        headers.check_size(field, headers.oriented(header, orientation), out.shape[:2])
        if orientation == UPRIGHT:
            self._rgb(field, cell, header, channels, out)
        else:
            pixels.store(pixels.oriented(self._rgb(field, cell, header, channels), orientation), out)

    def _resized(self, field: Field, cell: memoryview, out: npt.NDArray[Any], max_cell_bytes: int) -> None:
        """Decode an image and resize it into an array."""
        channels = pixels.channels_of(out)
        header = self._checked_header(field, cell, channels, max_cell_bytes)
        image = self._rgb(field, cell, header, channels)
        pixels.resize_into(pixels.oriented(image, self._applied_orientation(cell)), out)


def channels_in(field: Field) -> int | None:
    """Return the number of channels of a field, or None if images differ in it."""
    return field.shape[2] if len(field.shape) > 2 else GREY  # noqa: PLR2004 - grey has no third dimension


def is_whole(value: Any, low: int, high: int) -> bool:
    """Return whether a value is an integer from `low` to `high`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and low <= int(value) <= high


def set_integer(codec: Any, name: str, low: int, high: int) -> None:
    """Check an option that is an integer from `low` to `high`, and store it as an `int`."""
    value = getattr(codec, name)
    if not is_whole(value, low, high):
        kind = type(codec).__name__
        msg = f"{kind}() got {name}={value!r}; expected an integer from {low} to {high}, for example {kind}({name}={high})."
        raise ArgumentError(msg)
    object.__setattr__(codec, name, int(value))


def check_bool(codec: Any, name: str) -> None:
    """Check an option that is a bool."""
    value = getattr(codec, name)
    if not isinstance(value, bool):
        kind = type(codec).__name__
        raise ArgumentError(f"{kind}() got {name}={value!r}; expected a bool, for example {kind}({name}=True).")
