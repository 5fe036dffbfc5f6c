"""`petastorm.tf_utils`: readers as datasets of TensorFlow. Functions that need TensorFlow are not supported yet."""

from __future__ import annotations

import warnings
from calendar import timegm
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from penstock.petastorm._impl.not_supported import raise_not_supported
from penstock.petastorm.ngram import NGram
from penstock.petastorm.unischema import Unischema

__all__ = [
    "RANDOM_SHUFFLING_QUEUE_SIZE",
    "date_to_nsec_from_epoch",
    "make_namedtuple_tf_ngram",
    "make_petastorm_dataset",
    "tf_tensors",
]

RANDOM_SHUFFLING_QUEUE_SIZE = "random_shuffling_queue_size"
NANOSECONDS = 1_000_000_000

_RESET_READER_WARN = (
    "Running multiple iterations over make_petastorm_dataset is not recommend for performance issue. Give the reader "
    "num_epochs instead, or call cache() of the tf.data.Dataset before repeat()."
)

SUPPORTED_TYPES = (
    *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.float32, np.float64, np.bool_),
    *(np.bytes_, np.str_, np.datetime64, Decimal),
)
"""The types of fields that TensorFlow supports."""

SUPPORTED_DTYPES = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}
"""The dtypes in place of those that old versions of TensorFlow did not support."""


def date_to_nsec_from_epoch(dt: date) -> int:
    """Return a date, or a time in whole seconds, as nanoseconds since 1970."""
    return timegm(dt.timetuple()) * NANOSECONDS


_date_to_nsec_from_epoch_vectorized = np.vectorize(date_to_nsec_from_epoch)


def make_namedtuple_tf_ngram(unischema: Unischema, ngram: NGram, *args: Any, **kargs: Any) -> dict[int, Any]:
    """Return a window as named tuples by offset.

    Args:
        unischema: The fields.
        ngram: The fields of each offset.
        *args: Values in the order of offsets.
        **kargs: A dict of values for each offset; the keyword is the offset as text.
    """
    window, used = {}, 0
    for offset in range(min(ngram.fields), max(ngram.fields) + 1):
        view = ngram.get_schema_at_timestep(unischema, offset)
        count = len(ngram.get_field_names_at_timestep(offset))
        window[offset] = view.make_namedtuple_tf(*args[used : used + count], **kargs.get(str(offset), {}))
        used += count
    return window


def _sanitize_field_tf_types(sample: Any) -> Any:
    """Return a row, or a batch, with values that TensorFlow supports.

    Decimals become text, unsigned numbers larger signed ones, arrays of text lists, and arrays of dates or timestamps
    nanoseconds since 1970.

    Raises:
        RuntimeError: If a value is None.
        ValueError: If a timestamp is out of the range of nanoseconds.
    """
    return type(sample)(**{name: _sanitize(name, value) for name, value in sample._asdict().items()})


def _sanitize(name: str, value: Any) -> Any:
    """Return a value that TensorFlow supports."""
    if value is None:
        raise RuntimeError(_null_message(name))
    if isinstance(value, Decimal):
        return str(value.normalize())
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype in SUPPORTED_DTYPES:
        return value.astype(SUPPORTED_DTYPES[value.dtype])
    if value.dtype.kind in "SU":
        return value.tolist() if value.size else value
    if value.dtype.kind == "M" or (value.dtype.kind == "O" and any(isinstance(cell, date) for cell in value.flat)):
        return _nanoseconds(name, value)
    return value


def _nanoseconds(name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return dates or timestamps as nanoseconds since 1970."""
    times = values.astype("datetime64[us]") if values.dtype.kind == "O" else values
    if np.isnat(times).any():
        raise RuntimeError(_null_message(name))
    converted = times.astype("datetime64[ns]")
    if (converted.astype(times.dtype) != times).any():
        msg = f"field {name} has moments outside 1677-09-21 .. 2262-04-11, and TensorFlow is given nanoseconds since 1970. "
        raise ValueError(msg + "Leave such rows out by a predicate, or the field out by schema_fields.")
    return converted.astype(np.int64)


def _null_message(name: str) -> str:
    return (
        f'Encountered "{name}"=None. Tensorflow does not support None values as a tensor. '
        "Consider filtering out these rows using a predicate."
    )


def _flatten(data: Mapping[int, Any]) -> Any:
    """Return a window as one named tuple; the number of the offset is appended to each name."""
    flat = {
        f"{name}_{number}": value
        for number, offset in enumerate(sorted(data))
        for name, value in data[offset]._asdict().items()
    }
    return namedtuple("flattened", list(flat))(**flat)  # noqa: PYI024 - the fields are those of a file


def _sanitize_and_flatten(ngram: Mapping[int, Any]) -> Any:
    """Return a window as one named tuple of values that TensorFlow supports."""
    return _flatten({offset: _sanitize_field_tf_types(row) for offset, row in ngram.items()})


def _ngrams_generator(reader: Any) -> Iterator[Any]:
    """Yield the windows of a reader as flat named tuples; reset the reader if it was read to its end."""
    if reader.last_row_consumed:
        warnings.warn(_RESET_READER_WARN, UserWarning, stacklevel=2)
        reader.reset()
    yield from map(_sanitize_and_flatten, reader)


def _set_shape(schema: Unischema, fields_as_dict: Mapping[str, Any], batched_output: bool | None = None) -> None:
    """Set the shapes of tensors without a shape to those of their fields."""
    for name, tensor in fields_as_dict.items():
        if tensor.get_shape().dims is None:
            tensor.set_shape((*((None,) if batched_output else ()), *schema.fields[name].shape))


def _set_shape_to_named_tuple(schema: Unischema, fields: Any, batched_output: bool | None) -> Any:
    """Return a row of tensors with the shapes of their fields."""
    _set_shape(schema, fields._asdict(), batched_output)
    return schema.make_namedtuple_tf(**fields._asdict())


def _unflatten_and_set_shape(schema: Unischema, ngram: NGram, fields_as_list: Sequence[Any]) -> dict[int, Any]:
    """Return a flat list of tensors as a window, with the shapes of their fields."""
    window = make_namedtuple_tf_ngram(schema, ngram, *fields_as_list)
    for row in window.values():
        _set_shape(schema, row._asdict())
    return window


def _numpy_to_tf_dtypes(numpy_dtype: Any) -> NoReturn:
    """Return the TensorFlow type of a NumPy type.

    Raises:
        ValueError: If there is none.
        MissingExtraError: It is not supported yet.
    """
    if numpy_dtype not in SUPPORTED_TYPES:
        raise ValueError(f"Unknown mapping of numpy {numpy_dtype} to tensorflow dtype. Leave the field out by schema_fields.")
    if numpy_dtype is np.str_:
        msg = "Tensorflow will convert all unicode strings back to bytes type. You may need to decode values."
        warnings.warn(msg, UnicodeWarning, stacklevel=2)
    raise_not_supported("petastorm.tf_utils._numpy_to_tf_dtypes", "tensorflow", instead="the types of reader.schema.fields")


def _schema_to_tf_dtypes(schema: Unischema) -> list[Any]:
    """Return the TensorFlow types of the fields of a schema."""
    return [_numpy_to_tf_dtypes(field.numpy_dtype) for field in schema.fields.values()]


def _schema_to_tf_dtypes_ngram(schema: Unischema, ngram: NGram) -> list[Any]:
    """Return the TensorFlow types of the fields of a window, in the order of offsets."""
    return [
        _numpy_to_tf_dtypes(field.numpy_dtype)
        for offset in sorted(ngram.fields)
        for field in ngram.get_schema_at_timestep(schema, offset).fields.values()
    ]


def tf_tensors(reader: Any, shuffling_queue_capacity: int = 0, min_after_dequeue: int = 0) -> NoReturn:  # noqa: ARG001 - the signature of Petastorm
    """Return tensors of the next row.

    Raises:
        MissingExtraError: It is not supported yet.
    """
    raise_not_supported(
        "petastorm.tf_utils.tf_tensors", "tensorflow", instead="the reader itself, or tf.data.Dataset.from_generator"
    )


def make_petastorm_dataset(reader: Any) -> NoReturn:  # noqa: ARG001 - the signature of Petastorm
    """Return a `tf.data.Dataset` of the rows of a reader.

    Raises:
        MissingExtraError: It is not supported yet.
    """
    raise_not_supported(
        "petastorm.tf_utils.make_petastorm_dataset", "tensorflow", instead="tf.data.Dataset.from_generator with the reader"
    )
