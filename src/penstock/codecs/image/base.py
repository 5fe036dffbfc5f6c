"""What the codecs of images have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock._blobs import MAX_CELL_BYTES, Blobs
from penstock.codecs.image import headers, pixels
from penstock.codecs.image.headers import UPRIGHT, Header, ImageError
from penstock.errors import ArgumentError
from penstock.schema import CellCodec, CellProblem, Field

GREY, RGB, RGBA = 1, 3, 4


class ImageCodec(CellCodec):
    """What the codecs of images have in common: what they store, and the limits that are kept before anything is decoded.

    Grey and palettes become RGB, and RGB becomes RGBA, where the field says so. What would lose colours, alpha or depth is an
    error. Images are turned as their EXIF says only where the codec has `orient=True`.
    """

    compressed = True

    title: ClassVar[str]
    channels: ClassVar[tuple[int, ...]] = (GREY, RGB, RGBA)
    dtypes: ClassVar[tuple[str, ...]] = ("uint8",)
    longest: ClassVar[int]
    orient: bool = False

    def __repr__(self) -> str:
        """Return the codec as it can be made again; `orient` where it is asked for."""
        fields = self.__dataclass_fields__  # type: ignore[attr-defined] # every codec is a dataclass
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in fields if name != "orient" or self.orient)
        return f"{type(self).__name__}({told})"

    def options(self) -> Mapping[str, Any]:
        """Return what is stored with the name; nothing of `orient` unless it is asked for, as in tables from before it."""
        return {name: value for name, value in super().options().items() if name != "orient" or value}

    @abstractmethod
    def _written(self, cell: npt.NDArray[Any]) -> bytes:
        """Return an image as bytes; grey has two dimensions."""

    @abstractmethod
    def _header(self, cell: memoryview) -> Header:
        """Return what an image claims to be."""

    def _orientation(self, cell: memoryview) -> int:  # noqa: ARG002 - of formats that have it
        """Return the EXIF orientation of an image, from 1 to 8."""
        return UPRIGHT

    def _turn(self, cell: memoryview) -> int:
        """Return the orientation by which an image is turned: its own where that is asked for."""
        return self._orientation(cell) if self.orient else UPRIGHT

    def check(self, field: Field) -> None:
        """Refuse fields whose cells are no images that can be stored so.

        Raises:
            ArgumentError: If the dtype or the shape is none of an image.
        """
        if str(field.dtype) not in self.dtypes:
            known = " or ".join(self.dtypes)
            msg = f"Field {field.name!r} is {field.dtype}, and {self.title} stores {known}. Use penstock.codecs.Npy()."
            raise ArgumentError(msg)
        size, channels = field.shape[:2], field.shape[2:]
        if len(size) != 2 or len(channels) > 1 or not {*channels} <= {None, *self.channels}:  # noqa: PLR2004 - height and width
            shapes = ", ".join(["(height, width)", *(f"(height, width, {count})" for count in self.channels)])
            msg = (
                f"Field {field.name!r} has the shape {field.shape}, and {self.title} stores {shapes}, where None may stand for "
                "any of them. Give such a shape, or use penstock.codecs.Npy()."
            )
            raise ArgumentError(msg)
        if any(side is not None and not 1 <= side <= self.longest for side in size):
            msg = (
                f"Field {field.name!r} has the shape {field.shape}, and {self.title} stores 1 to {self.longest} pixels on a "
                "side. Use penstock.codecs.Npy()."
            )
            raise ArgumentError(msg)

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return an image as bytes.

        Raises:
            ArgumentError: If it cannot be stored so.
            MissingExtraError: If the library is not installed.
        """
        image = np.ascontiguousarray(cell, dtype=field.dtype)
        flat = image[..., 0] if image.shape[2:] == (GREY,) else image
        channels = pixels.channels_of(flat) if flat.ndim in (2, 3) else None
        if channels not in self.channels or not all(1 <= side <= self.longest for side in flat.shape[:2]):
            counts = " or ".join(map(str, self.channels))
            msg = (
                f"Column {field.name!r} got an image of the shape {image.shape}, and {self.title} stores 1 to {self.longest} "
                f"pixels on a side and {counts} channels. Cut it, or use penstock.codecs.Npy()."
            )
            raise ArgumentError(msg)
        try:
            return self._written(flat)
        except ValueError as error:
            msg = (
                f"Column {field.name!r} got {image.dtype} {image.shape}, which cannot be written as {self.title}: {error}. "
                "Check the image, or use penstock.codecs.Npy()."
            )
            raise ArgumentError(msg) from error

    def decode(self, field: Field, cell: memoryview) -> npt.NDArray[Any]:
        """Return an image.

        Raises:
            CellProblem: If it cannot be decoded, or is none of the field.
            MissingExtraError: If the library is not installed.
        """
        try:
            return self._fresh(field, cell, MAX_CELL_BYTES)
        except ImageError as problem:
            raise CellProblem(0, str(problem)) from problem

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Return images one by one, in arrays of their own, None for nulls.

        Raises:
            CellProblem: If one cannot be decoded, or is none of the field.
            MissingExtraError: If the library is not installed.
        """
        found: list[Any] = [None] * len(cells)
        for row, cell in cells.present():
            try:
                found[row] = self._fresh(field, cell, cells.max_cell_bytes)
            except ImageError as problem:
                raise CellProblem(row, str(problem)) from problem
        return found

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode images of one size into an array, a row each; null ones are left as they are.

        Raises:
            CellProblem: If one cannot be decoded, or is none of the field.
            MissingExtraError: If the library is not installed.
        """
        for row, cell in cells.present():
            try:
                self._into(field, cell, out[row], cells.max_cell_bytes)
            except ImageError as problem:
                raise CellProblem(row, str(problem)) from problem

    def decode_resized(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode images of any size into an array, brought to its size, a row each; null ones are left as they are.

        Raises:
            CellProblem: If one cannot be decoded, or has other channels or another depth than the field.
            MissingExtraError: If the library is not installed.
        """
        for row, cell in cells.present():
            try:
                self._resized(field, cell, out[row], cells.max_cell_bytes)
            except ImageError as problem:
                raise CellProblem(row, str(problem)) from problem

    def _claims(self, field: Field, cell: memoryview, channels: int | None, max_cell_bytes: int) -> Header:
        """Return what an image claims to be, if it may be decoded and becomes one of the field without loss."""
        header = self._header(cell)
        headers.check_bytes(header, channels or GREY, max_cell_bytes)
        headers.check_kind(field, header, channels)
        return header

    def _read(self, field: Field, cell: memoryview, header: Header, channels: int | None) -> npt.NDArray[Any]:  # noqa: ARG002
        """Return an image as OpenCV has it, of channels that can become those asked for."""
        return pixels.read(cell, header, self.title)

    def _rgb(
        self, field: Field, cell: memoryview, header: Header, channels: int | None, out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """Return an image of the channels asked for, in the order RGB; in `out` where it is given, which must have its size."""
        found = self._read(field, cell, header, channels)
        if out is not None:
            headers.check_size(field, pixels.header_of(found), out.shape[:2])
        return pixels.to_rgb(found, channels, out)

    def _fresh(self, field: Field, cell: memoryview, max_cell_bytes: int) -> npt.NDArray[Any]:
        """Return an image in an array of its own."""
        channels = channels_in(field)
        header = self._claims(field, cell, channels, max_cell_bytes)
        turn = self._turn(cell)
        headers.check_size(field, headers.turned(header, turn), field.shape[:2])
        found = pixels.turned(self._rgb(field, cell, header, channels), turn)
        headers.check_size(field, pixels.header_of(found), field.shape[:2])
        return found if len(field.shape) == found.ndim else found[..., np.newaxis]

    def _into(self, field: Field, cell: memoryview, out: npt.NDArray[Any], max_cell_bytes: int) -> None:
        """Decode an image of the size of an array into it."""
        channels = pixels.channels_of(out)
        header = self._claims(field, cell, channels, max_cell_bytes)
        turn = self._turn(cell)
        headers.check_size(field, headers.turned(header, turn), out.shape[:2])
        if turn == UPRIGHT:
            self._rgb(field, cell, header, channels, out)
        else:
            pixels.stored(pixels.turned(self._rgb(field, cell, header, channels), turn), out)

    def _resized(self, field: Field, cell: memoryview, out: npt.NDArray[Any], max_cell_bytes: int) -> None:
        """Decode an image and bring it to the size of an array."""
        channels = pixels.channels_of(out)
        header = self._claims(field, cell, channels, max_cell_bytes)
        pixels.resized(pixels.turned(self._rgb(field, cell, header, channels), self._turn(cell)), out)


def channels_in(field: Field) -> int | None:
    """Return how many channels a field has, or None where images differ."""
    return field.shape[2] if len(field.shape) > 2 else GREY  # noqa: PLR2004 - grey has no third


def is_whole(value: Any, low: int, high: int) -> bool:
    """Return whether a value is a whole number between two."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and low <= int(value) <= high


def keep_whole(codec: Any, name: str, low: int, high: int) -> None:
    """Refuse an option that is no whole number between two, and keep it as a plain one."""
    value = getattr(codec, name)
    if not is_whole(value, low, high):
        kind = type(codec).__name__
        msg = f"{kind} got {name}={value!r}. A whole number from {low} to {high} was expected. Give one: {kind}({name}={high})."
        raise ArgumentError(msg)
    object.__setattr__(codec, name, int(value))


def check_truth(codec: Any, name: str) -> None:
    """Refuse an option that is neither True nor False."""
    value = getattr(codec, name)
    if not isinstance(value, bool):
        kind = type(codec).__name__
        raise ArgumentError(f"{kind} got {name}={value!r}. True or False was expected. Give one of them.")
