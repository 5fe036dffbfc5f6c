"""Deletion vectors: the rows of a data file that are deleted, as compressed bitmaps in the log or in files beside it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs as pafs

from penstock.errors import DataError
from penstock.formats.delta.paths import resolve
from penstock.model import IntArray, Place

__all__ = ["DeletionVector", "decoded", "deletes", "described", "z85_decoded"]

MAGIC, OLD_MAGIC = 1681511377, 1681511376  # the older one is in the protocol's own examples
RUNS, NO_RUNS = 12347, 12346  # cookies of a bitmap with and without containers of runs
MOST_IN_ARRAY = 4096
BITMAP_BYTES = 8192
MANY = 4  # containers from which on a bitmap with runs has a table of offsets
CHECKED = 8  # bytes around a vector in a file: its size before it, its checksum after it
ALPHABET = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
UUID_LENGTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """Where a deletion vector lies, as the log says it.

    Attributes:
        storage: "i" for one in the log itself, "u" for a file beside the table's, "p" for a file by its full path.
        path: The vector itself or its place, by the storage.
        offset: Where it begins in its file; 0 where the log does not say.
        size: Its bytes.
        cardinality: The rows that it deletes.
    """

    storage: str
    path: str
    offset: int
    size: int
    cardinality: int

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> DeletionVector:
        """Return a vector as an action describes it."""
        return cls(
            storage=told.get("storageType") or "",
            path=told.get("pathOrInlineDv") or "",
            offset=told.get("offset") or 0,
            size=told.get("sizeInBytes") or 0,
            cardinality=told.get("cardinality") or 0,
        )

    @staticmethod
    def is_told(told: object) -> bool:
        """Return whether a value of JSON describes a vector."""
        if not isinstance(told, dict):
            return False
        texts, numbers = ("storageType", "pathOrInlineDv"), ("offset", "sizeInBytes", "cardinality")
        return all(isinstance(told.get(name), str) for name in texts) and all(
            told.get(name) is None or type(told[name]) is int for name in numbers
        )

    def file(self, place: Place) -> str:
        """Return the file that it lies in.

        Raises:
            DataError: If the log names no file that can be.
        """
        if self.storage == "p":
            return resolve(self.path, place)
        try:
            prefix, name = self.path[:-UUID_LENGTH], UUID(bytes=z85_decoded(self.path[-UUID_LENGTH:]))
        except ValueError:
            name = None
        if self.storage != "u" or name is None:
            msg = (
                f"{place.url} has a deletion vector stored as {self.storage!r} at {self.path!r}. One in the log (i), beside "
                "the table (u, with an encoded UUID) or by its path (p) was expected. Use software that knows it."
            )
            raise DataError(msg)
        return "/".join([place.path.rstrip("/"), *([prefix] if prefix else []), f"deletion_vector_{name}.bin"])


def deletes(vectors: Mapping[int, DeletionVector], place: Place, version: int) -> dict[int, IntArray]:
    """Return the rows that are deleted, ascending, for each data file that has a deletion vector.

    Raises:
        DataError: If a vector is not there, or is not what the log says of it.
    """
    found: dict[int, IntArray] = {}
    files: dict[str, list[int]] = {}
    for file, vector in vectors.items():
        if vector.storage == "i":
            found[file] = _checked(_inline(vector, place), vector, place.url)
        else:
            files.setdefault(vector.file(place), []).append(file)

    def read(path: str) -> dict[int, IntArray]:
        return _read_file(path, {file: vectors[file] for file in files[path]}, place.filesystem, version)

    with ThreadPoolExecutor(max(1, min(16, len(files))), thread_name_prefix="penstock-deletes") as pool:
        for part in pool.map(read, files):
            found.update(part)
    return found


def _inline(vector: DeletionVector, place: Place) -> bytes:
    try:
        return z85_decoded(vector.path)[: vector.size]
    except ValueError as error:
        msg = (
            f"{place.url} has a deletion vector in its log that is no text in base 85. Repair the table with the software that "
            "wrote it."
        )
        raise DataError(msg) from error


def _read_file(
    path: str, vectors: Mapping[int, DeletionVector], filesystem: pafs.FileSystem, version: int
) -> dict[int, IntArray]:
    """Return the deleted rows by data file, from one file of deletion vectors."""
    try:
        with filesystem.open_input_file(path) as source:
            whole = source.read() if len(vectors) > 1 else b""
            parts = {file: _part(source, whole, vector) for file, vector in vectors.items()}
    except FileNotFoundError as error:
        msg = (
            f"{path}: the file is gone, which says the rows that are deleted in version {version} of the table. VACUUM removes "
            "such files. Open a newer version, or restore the file."
        )
        raise DataError(msg) from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: the deletion vectors cannot be read: {error}. Check the file.") from error
    return {file: _checked(_unwrapped(data, vectors[file], path), vectors[file], path) for file, data in parts.items()}


def _part(source: pa.NativeFile, whole: bytes, vector: DeletionVector) -> bytes:
    """Return the bytes of one vector, with its size and its checksum."""
    start = vector.offset or 1  # the first byte of a file is the number of its format
    if whole:
        return whole[start : start + vector.size + CHECKED]
    found: bytes = source.read_at(vector.size + CHECKED, start)
    return found


def _unwrapped(data: bytes, vector: DeletionVector, path: str) -> bytes:
    """Return a vector out of its size and checksum."""
    size, body = int.from_bytes(data[:4], "big"), data[4:-4]
    if size != vector.size or len(body) != size or zlib.crc32(body) != int.from_bytes(data[-4:], "big"):
        msg = (
            f"{path}: the deletion vector at byte {vector.offset} is damaged: its size or its checksum differ from what is "
            f"stored. {vector.size} bytes were expected. Restore the file."
        )
        raise DataError(msg)
    return body


def _checked(data: bytes, vector: DeletionVector, where: str) -> IntArray:
    """Return the rows of a vector, which must be as many as the log says."""
    try:
        rows = decoded(data)
    except (ValueError, IndexError) as error:
        msg = f"{where}: a deletion vector cannot be read: {error}. A bitmap of rows was expected. Restore the file."
        raise DataError(msg) from error
    if len(rows) != vector.cardinality:
        msg = (
            f"{where}: a deletion vector deletes {len(rows)} rows, and the log says {vector.cardinality}. The file or the log "
            "is damaged. Restore the file, or open another version."
        )
        raise DataError(msg)
    return rows


def decoded(data: bytes) -> IntArray:
    """Return the numbers in a bitmap, ascending.

    Raises:
        ValueError: If it is no bitmap of this format.

    Example:
        >>> decoded(z85_decoded("^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L")).tolist()
        [3, 4, 7, 11, 18, 29]
    """
    parts = [np.zeros(0, dtype=np.int64), *(part + (key << 32) for key, part in _buckets(data))]
    found = np.concatenate(parts)
    if (np.diff(found) <= 0).any():
        msg = "its numbers do not ascend"
        raise ValueError(msg)
    return found


def _buckets(data: bytes) -> Iterator[tuple[int, IntArray]]:
    """Yield the upper 31 bits of numbers, and their lower 32."""
    if int.from_bytes(data[:4], "little") == MAGIC:
        at = 12
        for _ in range(_number(data, 4, 8)):
            key = _number(data, at, 4)
            low, at = _bitmap(data, at + 4)
            yield from ((_sound(key), part) for part in low)
        return
    order: Literal["big", "little"] = "big" if int.from_bytes(data[:4], "big") == OLD_MAGIC else "little"
    if int.from_bytes(data[:4], order) != OLD_MAGIC:
        msg = f"it begins with {data[:4]!r}"
        raise ValueError(msg)
    at = 8
    for key in range(int.from_bytes(data[4:8], order)):
        size = int.from_bytes(data[at : at + 4], order)
        low, _ = _bitmap(data, at + 4)
        yield from ((_sound(key), part) for part in low)
        at += 4 + size


def _sound(key: int) -> int:
    if key >= 1 << 31:
        msg = f"it has numbers from {key << 32} on"
        raise ValueError(msg)
    return key


def _bitmap(data: bytes, at: int) -> tuple[list[IntArray], int]:
    """Return the numbers of a bitmap of 32 bits, by container, and where it ends."""
    cookie = _number(data, at, 4)
    at += 4
    if cookie & 0xFFFF == RUNS:
        count = (cookie >> 16) + 1
        marks = np.unpackbits(_array(data, at, (count + 7) // 8, np.uint8), bitorder="little")
        at += (count + 7) // 8
    elif cookie == NO_RUNS:
        count, at = _number(data, at, 4), at + 4
        marks = np.zeros(count, dtype=np.uint8) if count <= 1 << 16 else _too_many(count)
    else:
        msg = f"it has a bitmap of kind {cookie}"
        raise ValueError(msg)
    heads = _array(data, at, 2 * count, np.dtype("<u2")).astype(np.int64)
    at += 4 * count
    if cookie == NO_RUNS or count >= MANY:
        at += 4 * count  # containers follow each other, so that their offsets tell nothing
    parts = []
    for number in range(count):
        low, at = _container(data, at, int(heads[2 * number + 1]) + 1, runs=bool(marks[number]))
        parts.append((heads[2 * number] << 16) + low)
    return parts, at


def _too_many(count: int) -> npt.NDArray[np.uint8]:
    msg = f"it has {count} containers"
    raise ValueError(msg)


def _container(data: bytes, at: int, count: int, *, runs: bool) -> tuple[IntArray, int]:
    """Return the numbers of one container, 16 bits each, and where it ends."""
    if runs:
        number = _number(data, at, 2)
        pairs = _array(data, at + 2, 2 * number, np.dtype("<u2")).astype(np.int64)
        starts, lengths = pairs[0::2], pairs[1::2] + 1
        ends = np.cumsum(lengths)
        if number == 0 or ends[-1] != count or (starts + lengths > 1 << 16).any():
            msg = f"a container of {count} numbers has other runs"
            raise ValueError(msg)
        return np.arange(count) + np.repeat(starts - ends + lengths, lengths), at + 2 + 4 * number
    if count <= MOST_IN_ARRAY:
        return _array(data, at, count, np.dtype("<u2")).astype(np.int64), at + 2 * count
    bits = np.unpackbits(_array(data, at, BITMAP_BYTES, np.uint8), bitorder="little")
    return np.flatnonzero(bits), at + BITMAP_BYTES


def _number(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        msg = f"it ends after {len(data)} bytes"
        raise ValueError(msg)
    return int.from_bytes(data[at : at + size], "little")


def _array(data: bytes, at: int, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    if at + count * np.dtype(dtype).itemsize > len(data):
        msg = f"it ends after {len(data)} bytes"
        raise ValueError(msg)
    return np.frombuffer(data, dtype=dtype, count=count, offset=at)


def z85_decoded(text: str) -> bytes:
    """Return the bytes of text in base 85; a last word may be filled up with #, which stand for bytes that are not there.

    Raises:
        ValueError: If it is no such text.

    Example:
        >>> z85_decoded("HelloWorld").hex(), z85_decoded("Hello##093").hex()
        ('864fd26fb559f75b', '864fd26f0300')
    """
    places = np.full(256, 85, dtype=np.int64)
    places[np.frombuffer(ALPHABET, dtype=np.uint8)] = np.arange(85)
    digits = places[np.frombuffer(text.encode(), dtype=np.uint8)]
    filled = len(text[-5:]) - len(text[-5:].lstrip("#"))  # a whole word never begins with the last digit
    digits[len(digits) - 5 : len(digits) - 5 + filled] = 0
    if len(digits) % 5 or filled > 3 or (digits > 84).any():  # noqa: PLR2004 - the digits of a word, and of this base
        msg = f"{text!r} is no text in base 85"
        raise ValueError(msg)
    words = digits.reshape(-1, 5) @ 85 ** np.arange(4, -1, -1)
    if (words >= 1 << 32).any():
        msg = f"{text!r} is no text in base 85"
        raise ValueError(msg)
    found = words.astype(">u4").tobytes()
    return found[:-4] + found[len(found) - 4 + filled :] if filled else found


def described(vectors: pa.StructArray, which: Sequence[int]) -> dict[int, DeletionVector]:
    """Return the deletion vectors that actions name, by the index of their files."""
    return {file: DeletionVector.of(vectors[file].as_py()) for file in which}
