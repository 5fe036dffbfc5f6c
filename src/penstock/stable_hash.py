"""A hash of values that is the same on all machines, in all releases, file layouts and column widths.

Splits by hash (`ds.split(..., by="id")`) depend on it, so the numbers never change and tests pin them.
A better hash would be a second function.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ArgumentError

__all__ = ["HashArray", "is_hashable", "mix", "stable_hash"]

HashArray: TypeAlias = npt.NDArray[np.uint64]
_Bits = TypeVar("_Bits", np.uint64, HashArray)

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SEED = 0xD1B54A32D192ED03
_NULL = 0x6E756C6C6E756C6C
_WORD = 8


def stable_hash(values: pa.Array | pa.ChunkedArray, seed: int = 0) -> HashArray:
    """Return one 64-bit number per value, the same in all versions and evenly distributed.

    Equal values of different types have equal hashes: integers of any width (uint64 by its bits), booleans as 0 and 1;
    strings, binaries and dictionaries of them by their bytes; floats as float64, with -0.0 as 0.0 and every NaN alike;
    decimals by their digits, whatever the scale. Dates, times, timestamps and durations hash by the stored integer, so
    their unit matters and their zone does not. Nulls of all types have one hash.

    Args:
        values: The values, in any number of chunks.
        seed: Another seed gives another hash; 0 is a seed.

    Returns:
        The hashes, in the order of the values.

    Raises:
        ArgumentError: If the type has no stable hash: lists, structs, maps and other nested types.

    Example:
        >>> stable_hash(pa.array([1, 2, None])).tolist()
        [17254714976675052272, 813567579227287271, 13221476204685177574]
    """
    if not is_hashable(values.type):
        msg = f"Values of type {values.type} have no stable hash. Hash a column of numbers, strings, bytes or times."
        raise ArgumentError(msg)
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    key = mix(np.uint64((seed + _SEED) & _MASK))
    parts = [_hash_chunk(chunk, key) for chunk in chunks]
    return np.concatenate([*parts, np.empty(0, np.uint64)])


def is_hashable(type_: pa.DataType) -> bool:
    """Return whether values of an Arrow type have a stable hash.

    Example:
        >>> is_hashable(pa.int32()), is_hashable(pa.list_(pa.int32()))
        (True, False)
    """
    if isinstance(type_, pa.BaseExtensionType):
        return is_hashable(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return is_hashable(type_.value_type)
    types = pa.types
    number = types.is_boolean(type_) or types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_)
    return bool(number or _is_bytes(type_) or _is_time(type_) or types.is_null(type_))


def _is_time(type_: pa.DataType) -> bool:
    """Return whether values are stored as an integer number of days or parts of a second."""
    return bool(pa.types.is_temporal(type_) and not pa.types.is_interval(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    """Return whether values are strings or bytes, in any layout of Arrow."""
    types = pa.types
    plain = types.is_string(type_) or types.is_binary(type_) or types.is_fixed_size_binary(type_)
    large = types.is_large_string(type_) or types.is_large_binary(type_)
    return bool(plain or large or types.is_string_view(type_) or types.is_binary_view(type_))


def _hash_chunk(chunk: pa.Array, key: np.uint64) -> HashArray:
    """Return the hashes of one array."""
    if isinstance(chunk, pa.ExtensionArray):
        return _hash_chunk(chunk.storage, key)
    null = mix(mix(np.uint64(_NULL)) ^ key)
    if pa.types.is_null(chunk.type):
        return np.full(len(chunk), null)
    if pa.types.is_dictionary(chunk.type):
        hashes = np.append(_hash_chunk(chunk.dictionary, key), null)
        return hashes.take(_numpy(chunk.indices.cast(pa.int64()).fill_null(len(hashes) - 1)))
    hashes = mix(_content(chunk) ^ key)
    return np.where(_numpy(chunk.is_valid()), hashes, null)


def _content(chunk: pa.Array) -> HashArray:
    """Return the hash of each value before the seed is mixed in; any number for nulls."""
    if _is_bytes(chunk.type):
        return _bytes_content(chunk.cast(pa.large_binary()))
    if pa.types.is_decimal(chunk.type):
        return _bytes_content(_digits(chunk).cast(pa.large_binary()))
    return mix(_words(chunk) + np.uint64(_GOLDEN))


def _words(chunk: pa.Array) -> HashArray:
    """Return fixed-width values as 64 bits each."""
    if pa.types.is_floating(chunk.type):
        floats = _numpy(chunk.cast(pa.float64()).fill_null(0.0)) + 0.0  # -0.0 + 0.0 is 0.0
        return np.where(np.isnan(floats), np.nan, floats).view(np.uint64)
    if _is_time(chunk.type):
        chunk = chunk.view(pa.int32() if chunk.type.bit_width == 32 else pa.int64())  # noqa: PLR2004
    wide = pa.uint64() if pa.types.is_uint64(chunk.type) else pa.int64()
    words: HashArray = _numpy(chunk.cast(wide).fill_null(0)).view(np.uint64)
    return words


def _digits(chunk: pa.Array) -> pa.Array:
    """Return decimals as text that does not depend on scale and trailing zeros."""
    if chunk.type.scale < 0:
        chunk = chunk.cast(pa.decimal256(76, 0))
    text = chunk.cast(pa.string())
    text = pc.replace_substring_regex(text, r"^0(\.0*)?(E.*)?$", "0")
    text = pc.replace_substring_regex(text, r"(\.\d*?)0+(E|$)", r"\1\2")
    return pc.replace_substring_regex(text, r"\.(E|$)", r"\1")


def _bytes_content(chunk: pa.Array) -> HashArray:
    """Return a sum over the 8-byte words of each value, each mixed with its position, and over its length."""
    _, offset_buffer, data = chunk.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, len(chunk) + 1, chunk.offset * 8) if len(chunk) else np.zeros(1, np.int64)
    lengths = np.diff(offsets)
    counts = (lengths + _WORD - 1) // _WORD
    ends = np.cumsum(counts)
    place = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
    words = _load(data, np.repeat(offsets[:-1], counts) + _WORD * place)
    spare = _WORD - np.minimum(np.repeat(lengths, counts) - _WORD * place, _WORD)
    words &= np.uint64(_MASK) >> (spare * 8).astype(np.uint64)
    mixed = mix(words ^ mix((place + 1).astype(np.uint64) * np.uint64(_GOLDEN)))
    # Differences of a cumulative sum, since reduceat returns the word of a neighbour for an empty value.
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    return mix(sums[ends] - sums[ends - counts] + (lengths.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))


def _load(data: Any, starts: npt.NDArray[np.int64]) -> HashArray:
    """Return the little-endian words at byte offsets."""
    if not len(starts):
        return np.empty(0, np.uint64)
    first, last = int(starts.min()), int(starts.max())
    padded = np.zeros(last - first + _WORD, np.uint8)
    content = np.frombuffer(data, np.uint8)[first : last + _WORD]
    padded[: len(content)] = content
    words = np.ndarray((last - first + 1,), np.dtype("<u8"), padded, strides=(1,))  # one at each byte
    return words[starts - first].astype(np.uint64)


def mix(bits: _Bits) -> _Bits:
    """Return the finaliser of splitmix64, in which every input bit flips half of the output bits."""
    with np.errstate(over="ignore"):
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))


def _numpy(array: pa.Array) -> npt.NDArray[Any]:
    """Return an array without nulls as NumPy."""
    return np.asarray(array.to_numpy(zero_copy_only=False))
