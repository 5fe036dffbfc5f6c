"""The codecs of `petastorm.codecs`: how a value is stored in a cell of Parquet.

Readers do not come here: they decode a column at a time with the engine's codecs. These are for those who encode rows for
Spark, decode single cells, or derive codecs of their own.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from penstock.petastorm._impl.spark_types import pyspark_types, spark_name, to_spark

__all__ = [
    "OPENCV_AVAILABLE",
    "CompressedImageCodec",
    "CompressedNdarrayCodec",
    "DataframeColumnCodec",
    "NdarrayCodec",
    "ScalarCodec",
]

OPENCV_AVAILABLE = find_spec("cv2") is not None

GREY, COLOURS = 2, 3
JPEG = (".jpg", ".jpeg", ".jpe")


class DataframeColumnCodec:
    """What codecs have in common; derive from it for one of your own, and define what you use of it."""

    def encode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - whoever derives from it takes them
        """Return a value as it is stored."""
        raise self._undefined("encode")

    def decode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - the same
        """Return what was stored."""
        raise self._undefined("decode")

    def spark_dtype(self) -> Any:
        """Return the type of Spark that cells are stored in."""
        raise self._undefined("spark_dtype")

    def _undefined(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not define {what}. Define it, or use another codec.")

    def __str__(self) -> str:
        """Return how it is made."""
        return f"{type(self).__name__}()"


class CompressedImageCodec(DataframeColumnCodec):
    """Images as files: PNG, JPEG, or whatever else OpenCV writes. Arrays are red, green, blue.

    Args:
        image_codec: How files of the format end, like `png`.
        quality: The quality of a JPEG, up to 100.
    """

    def __init__(self, image_codec: str = "png", quality: int = 80) -> None:
        """Store the format."""
        assert OPENCV_AVAILABLE, "CompressedImageCodec needs OpenCV. Install it: pip install 'penstock[image]'."  # noqa: S101
        self._image_codec = f".{image_codec}"
        self._quality = quality

    @property
    def image_codec(self) -> str:
        """How files of the format end."""
        return self._image_codec[1:]

    def encode(self, unischema_field: Any, value: Any) -> bytearray:
        """Return an image as a file.

        Raises:
            ValueError: If it has another dtype or shape than the field, or is no image.
        """
        if unischema_field.numpy_dtype != value.dtype:
            msg = (
                f"Unexpected type of {unischema_field.name} feature: {value.dtype}. {unischema_field.numpy_dtype} was expected."
            )
            raise ValueError(msg)
        _check_shape(unischema_field, value.shape)
        if value.ndim != GREY and (value.ndim != COLOURS or value.shape[2] != COLOURS):
            msg = (
                f"Unexpected image dimensions of {unischema_field.name}: {value.shape}. (height, width) and (height, width, 3) "
                "are images. Use NdarrayCodec for others."
            )
            raise ValueError(msg)
        return bytearray(self._written(unischema_field.name, value))

    def decode(self, unischema_field: Any, value: Any) -> Any:
        """Return the image of a file.

        Raises:
            ValueError: If it is no image, or one with another number of channels than one or three.
        """
        import cv2

        found = cv2.imdecode(np.frombuffer(value, dtype=np.uint8), flags=cv2.IMREAD_UNCHANGED)
        if found is None:
            msg = (
                f"Unexpected image of {unischema_field.name}: {len(value)} bytes that OpenCV cannot read. Check what wrote it."
            )
            raise ValueError(msg)
        if found.ndim == GREY:
            return found
        if found.ndim == COLOURS and found.shape[2] == COLOURS:
            return cv2.cvtColor(found, cv2.COLOR_BGR2RGB)
        msg = f"Unexpected image dimensions of {unischema_field.name}: {found.shape}. Grey and RGB are read."
        raise ValueError(msg)

    def spark_dtype(self) -> Any:
        """Return the type of bytes."""
        return pyspark_types("CompressedImageCodec.spark_dtype").BinaryType()

    def _written(self, name: str, value: Any) -> bytes:
        import cv2

        image = value if value.ndim == GREY else cv2.cvtColor(np.ascontiguousarray(value), cv2.COLOR_RGB2BGR)
        options = [int(cv2.IMWRITE_JPEG_QUALITY), self._quality] if self._image_codec in JPEG else []
        done, found = cv2.imencode(self._image_codec, np.ascontiguousarray(image), options)
        if not done:
            msg = f"OpenCV cannot write {value.dtype} {value.shape} of {name} as {self._image_codec}. Use another format."
            raise ValueError(msg)
        return bytes(found)

    def __str__(self) -> str:
        """Return how it is made."""
        return f"CompressedImageCodec('{self.image_codec}', {self._quality})"


class NdarrayCodec(DataframeColumnCodec):
    """Arrays as `numpy.save` writes them."""

    def encode(self, unischema_field: Any, value: Any) -> bytearray:
        """Return an array as a file.

        Raises:
            ValueError: If it is none, or has another dtype or shape than the field.
        """
        _check_array(unischema_field, value)
        memory = io.BytesIO()
        np.save(memory, value, allow_pickle=False)
        return bytearray(memory.getvalue())

    def decode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - others look at the field
        """Return the array of a file."""
        return np.load(io.BytesIO(value), allow_pickle=False)

    def spark_dtype(self) -> Any:
        """Return the type of bytes."""
        return pyspark_types("NdarrayCodec.spark_dtype").BinaryType()


class CompressedNdarrayCodec(DataframeColumnCodec):
    """Arrays as `numpy.savez_compressed` writes them, under the name `arr`."""

    def encode(self, unischema_field: Any, value: Any) -> bytearray:
        """Return an array as a file.

        Raises:
            ValueError: If it is none, or has another dtype or shape than the field.
        """
        _check_array(unischema_field, value)
        memory = io.BytesIO()
        np.savez_compressed(memory, arr=value)
        return bytearray(memory.getvalue())

    def decode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - others look at the field
        """Return the array of a file."""
        with np.load(io.BytesIO(value), allow_pickle=False) as found:
            return found["arr"]

    def spark_dtype(self) -> Any:
        """Return the type of bytes."""
        return pyspark_types("CompressedNdarrayCodec.spark_dtype").BinaryType()


class ScalarCodec(DataframeColumnCodec):
    """Single values, stored as a type of Spark.

    Args:
        spark_type: The type, like `pyspark.sql.types.IntegerType()`.
    """

    def __init__(self, spark_type: Any) -> None:
        """Store the type."""
        self._spark_type = spark_type

    def encode(self, unischema_field: Any, value: Any) -> Any:
        """Return a value as Spark takes it.

        Raises:
            TypeError: If it is no single value.
            ValueError: If the field has a shape, or text was expected.
        """
        if not isinstance(value, np.ndarray) and hasattr(value, "__len__") and not isinstance(value, str):
            raise TypeError(f"Expected a scalar as a value for field '{unischema_field.name}'. Got {type(value).__name__}.")
        if isinstance(value, np.ndarray):
            if value.shape != ():
                raise TypeError(f"Expected a scalar as a value for field '{unischema_field.name}'. Got an array {value.shape}.")
            value = value[()]
        if unischema_field.shape != ():
            msg = f"The shape of field '{unischema_field.name}' must be an empty tuple, and is {unischema_field.shape}."
            raise ValueError(msg)
        return _plain(spark_name(self._spark_type), unischema_field.name, value)

    def decode(self, unischema_field: Any, value: Any) -> Any:
        """Return a value as the type of the field."""
        return unischema_field.numpy_dtype(value)

    def spark_dtype(self) -> Any:
        """Return the type of Spark."""
        return to_spark(self._spark_type)

    def __str__(self) -> str:
        """Return how it is made."""
        return f"ScalarCodec({spark_name(self._spark_type)}())"


def _plain(kind: str, name: str, value: Any) -> Any:
    """Return a value as Spark takes one of a type."""
    if kind in ("ByteType", "ShortType", "IntegerType", "LongType"):
        return int(value)
    if kind in ("FloatType", "DoubleType"):
        return float(value)
    if kind == "BooleanType":
        return bool(value)
    if kind == "StringType":
        if not isinstance(value, str):
            raise ValueError(f"Expected text as a value for field '{name}'. Got {type(value).__name__}.")
        return str(value)
    return value


def _check_array(unischema_field: Any, value: Any) -> None:
    """Refuse what is not an array of a field."""
    if not isinstance(value, np.ndarray):
        msg = f"Unexpected type of {unischema_field.name} feature: {type(value).__name__}. An ndarray was expected."
        raise ValueError(msg)  # noqa: TRY004 - the type that Petastorm raises
    if unischema_field.numpy_dtype != value.dtype.type:
        msg = f"Unexpected type of {unischema_field.name} feature: {value.dtype}. {unischema_field.numpy_dtype} was expected."
        raise ValueError(msg)
    _check_shape(unischema_field, value.shape)


def _is_compliant_shape(a: Sequence[int | None], b: Sequence[int | None]) -> bool:
    """Return whether two shapes are the same; a size of None or 0, on either side, is any."""
    return len(a) == len(b) and all(not one or not two or one == two for one, two in zip(a, b, strict=True))


def _check_shape(unischema_field: Any, shape: tuple[int, ...]) -> None:
    """Refuse another shape than a field has."""
    wanted = unischema_field.shape
    if not _is_compliant_shape(wanted, shape):
        raise ValueError(f"Unexpected dimensions of {unischema_field.name} feature: {shape}. {wanted} was expected.")
