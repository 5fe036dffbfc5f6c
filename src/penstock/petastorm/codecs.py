"""`petastorm.codecs`: conversions between values and the cells of Parquet files.

Readers do not use these classes: the codecs of the engine decode whole columns. They are for encoding rows for Spark, for
decoding single cells, and for codecs of your own.
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
    """The base class of codecs. A class of your own defines the methods that you use."""

    def encode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - for derived classes
        """Return the stored form of a value."""
        raise self._not_implemented("encode")

    def decode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - the same
        """Return the value of its stored form."""
        raise self._not_implemented("decode")

    def spark_dtype(self) -> Any:
        """Return the Spark type of cells."""
        raise self._not_implemented("spark_dtype")

    def _not_implemented(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not define {what}. Define it, or use another codec.")

    def __str__(self) -> str:
        """Return the expression of the codec."""
        return f"{type(self).__name__}()"


class CompressedImageCodec(DataframeColumnCodec):
    """Images as PNG, JPEG, or another format that OpenCV writes. Arrays are RGB.

    Args:
        image_codec: The suffix of files of the format, like `png`.
        quality: The quality of a JPEG, up to 100.
    """

    def __init__(self, image_codec: str = "png", quality: int = 80) -> None:
        """Store the format."""
        assert OPENCV_AVAILABLE, "CompressedImageCodec needs OpenCV. Install it: pip install 'penstock[image]'."  # noqa: S101
        self._image_codec = f".{image_codec}"
        self._quality = quality

    @property
    def image_codec(self) -> str:
        """The suffix of files of the format."""
        return self._image_codec[1:]

    def encode(self, unischema_field: Any, value: Any) -> bytearray:
        """Return the bytes of an image file.

        Raises:
            ValueError: If the dtype or the shape is not that of the field, or not that of an image.
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
        return bytearray(self._encode_image(unischema_field.name, value))

    def decode(self, unischema_field: Any, value: Any) -> Any:
        """Return the image of a file.

        Raises:
            ValueError: If it is not an image with one or three channels.
        """
        import cv2

        image = cv2.imdecode(np.frombuffer(value, dtype=np.uint8), flags=cv2.IMREAD_UNCHANGED)
        if image is None:
            msg = (
                f"Unexpected image of {unischema_field.name}: {len(value)} bytes that OpenCV cannot read. Check what wrote it."
            )
            raise ValueError(msg)
        if image.ndim == GREY:
            return image
        if image.ndim == COLOURS and image.shape[2] == COLOURS:
            return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        msg = f"Unexpected image dimensions of {unischema_field.name}: {image.shape}. Grey and RGB are read."
        raise ValueError(msg)

    def spark_dtype(self) -> Any:
        """Return the Spark type of bytes."""
        return pyspark_types("CompressedImageCodec.spark_dtype").BinaryType()

    def _encode_image(self, name: str, value: Any) -> bytes:
        import cv2

        image = value if value.ndim == GREY else cv2.cvtColor(np.ascontiguousarray(value), cv2.COLOR_RGB2BGR)
        options = [int(cv2.IMWRITE_JPEG_QUALITY), self._quality] if self._image_codec in JPEG else []
        succeeded, data = cv2.imencode(self._image_codec, np.ascontiguousarray(image), options)
        if not succeeded:
            msg = f"OpenCV cannot write {value.dtype} {value.shape} of {name} as {self._image_codec}. Use another format."
            raise ValueError(msg)
        return bytes(data)

    def __str__(self) -> str:
        """Return the expression of the codec."""
        return f"CompressedImageCodec('{self.image_codec}', {self._quality})"


class NdarrayCodec(DataframeColumnCodec):
    """Arrays as `numpy.save` writes them."""

    def encode(self, unischema_field: Any, value: Any) -> bytearray:
        """Return the bytes of an array file.

        Raises:
            ValueError: If it is not an array with the dtype and the shape of the field.
        """
        _check_array(unischema_field, value)
        memory = io.BytesIO()
        np.save(memory, value, allow_pickle=False)
        return bytearray(memory.getvalue())

    def decode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - other codecs need the field
        """Return the array of a file."""
        return np.load(io.BytesIO(value), allow_pickle=False)

    def spark_dtype(self) -> Any:
        """Return the Spark type of bytes."""
        return pyspark_types("NdarrayCodec.spark_dtype").BinaryType()


class CompressedNdarrayCodec(DataframeColumnCodec):
    """Arrays as `numpy.savez_compressed` writes them, under the name `arr`."""

    def encode(self, unischema_field: Any, value: Any) -> bytearray:
        """Return the bytes of an array file.

        Raises:
            ValueError: If it is not an array with the dtype and the shape of the field.
        """
        _check_array(unischema_field, value)
        memory = io.BytesIO()
        np.savez_compressed(memory, arr=value)
        return bytearray(memory.getvalue())

    def decode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - other codecs need the field
        """Return the array of a file."""
        with np.load(io.BytesIO(value), allow_pickle=False) as arrays:
            return arrays["arr"]

    def spark_dtype(self) -> Any:
        """Return the Spark type of bytes."""
        return pyspark_types("CompressedNdarrayCodec.spark_dtype").BinaryType()


class ScalarCodec(DataframeColumnCodec):
    """Single values, stored as a Spark type.

    Args:
        spark_type: The type, like `pyspark.sql.types.IntegerType()`.
    """

    def __init__(self, spark_type: Any) -> None:
        """Store the type."""
        self._spark_type = spark_type

    def encode(self, unischema_field: Any, value: Any) -> Any:
        """Return a value as Spark takes it.

        Raises:
            TypeError: If it is not a single value.
            ValueError: If the field has a shape, or the value must be text.
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
        return _to_python(spark_name(self._spark_type), unischema_field.name, value)

    def decode(self, unischema_field: Any, value: Any) -> Any:
        """Return a value as the type of the field."""
        return unischema_field.numpy_dtype(value)

    def spark_dtype(self) -> Any:
        """Return the Spark type."""
        return to_spark(self._spark_type)

    def __str__(self) -> str:
        """Return the expression of the codec."""
        return f"ScalarCodec({spark_name(self._spark_type)}())"


def _to_python(kind: str, name: str, value: Any) -> Any:
    """Return a value as the Python type of a Spark type."""
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
    """Check that a value is an array of a field."""
    if not isinstance(value, np.ndarray):
        msg = f"Unexpected type of {unischema_field.name} feature: {type(value).__name__}; expected an ndarray."
        raise ValueError(msg)  # noqa: TRY004 - the type that Petastorm raises
    if unischema_field.numpy_dtype != value.dtype.type:
        msg = f"Unexpected type of {unischema_field.name} feature: {value.dtype}. {unischema_field.numpy_dtype} was expected."
        raise ValueError(msg)
    _check_shape(unischema_field, value.shape)


def _is_compliant_shape(a: Sequence[int | None], b: Sequence[int | None]) -> bool:
    """Return whether two shapes match; a size of None or 0 matches any size."""
    return len(a) == len(b) and all(not size or not other or size == other for size, other in zip(a, b, strict=True))


def _check_shape(unischema_field: Any, shape: tuple[int, ...]) -> None:
    """Check that a shape is that of a field."""
    expected = unischema_field.shape
    if not _is_compliant_shape(expected, shape):
        raise ValueError(f"Unexpected dimensions of {unischema_field.name} feature: {shape}. {expected} was expected.")
