"""Deletion vectors: the deleted rows of a data file, as compressed bitmaps in the log or in files."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs as pafs

from penstock._engine.runtime.threads import parallel_map
from penstock.errors import DataError
from penstock.formats.delta.paths import resolve
from penstock.model import IntArray, Place

__all__ = ["DeletionVector", "decode_bitmap", "decode_z85", "deleted_rows", "parse_vectors"]

MAGIC, OLD_MAGIC = 1681511377, 1681511376  # the examples of the protocol have the older one
RUNS, NO_RUNS = 12347, 12346  # cookies of bitmaps with and without run containers
MOST_IN_ARRAY = 4096
BITMAP_BYTES = 8192
MIN_WITH_OFFSETS = 4  # a bitmap with runs has a table of offsets if it has so many containers
FRAME_BYTES = 8  # in a file, the size comes before a vector, and its checksum after it
ALPHABET = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
UUID_LENGTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """The description of a deletion vector in the log.

    Attributes:
        storage: "i" for a vector in the log itself, "u" for a file in the table's directory, "p" for a file by its full path.
        path: The vector itself or its path, by the storage.
        offset: Its offset in the file; 0 if the log has none.
        size: Its size in bytes.
        cardinality: The number of rows that it deletes.
    """

    storage: str
    path: str
    offset: int
    size: int
    cardinality: int

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> DeletionVector:
        """Return the vector of a description in an action."""
        return cls(
            storage=description.get("storageType") or "",
            path=description.get("pathOrInlineDv") or "",
            offset=description.get("offset") or 0,
            size=description.get("sizeInBytes") or 0,
            cardinality=description.get("cardinality") or 0,
        )

    @staticmethod
    def is_description(value: object) -> bool:
        """Return whether a JSON value describes a vector."""
        if not isinstance(value, dict):
            return False
        texts, numbers = ("storageType", "pathOrInlineDv"), ("offset", "sizeInBytes", "cardinality")
        return all(isinstance(value.get(name), str) for name in texts) and all(
            value.get(name) is None or type(value[name]) is int for name in numbers
        )

    def file(self, place: Place) -> str:
        """Return the file of the vector, or raise `DataError` if the description has none."""
        if self.storage == "p":
            return resolve(self.path, place)
        try:
            prefix, name = self.path[:-UUID_LENGTH], UUID(bytes=decode_z85(self.path[-UUID_LENGTH:]))
        except ValueError:
            name = None
        if self.storage != "u" or name is None:
            raise DataError(
                f"{place.url} has a deletion vector stored as {self.storage!r} at {self.path!r}; expected one in the log (i), "
                "in the table's directory (u, with an encoded UUID) or by its path (p). Use software that supports it."
            )
        return "/".join([place.path.rstrip("/"), *([prefix] if prefix else []), f"deletion_vector_{name}.bin"])


def deleted_rows(vectors: Mapping[int, DeletionVector], place: Place, version: int) -> dict[int, IntArray]:
    """Return the deleted rows, ascending, of each data file that has a deletion vector."""
    rows: dict[int, IntArray] = {}
    files: dict[str, list[int]] = {}
    for file, vector in vectors.items():
        if vector.storage == "i":
            rows[file] = _decode_checked(_decode_inline(vector, place), vector, place.url)
        else:
            files.setdefault(vector.file(place), []).append(file)

    def read(path: str) -> dict[int, IntArray]:
        return _read_file(path, {file: vectors[file] for file in files[path]}, place.filesystem, version)

    for part in parallel_map(read, list(files)):
        rows.update(part)
    return rows


def _decode_inline(vector: DeletionVector, place: Place) -> bytes:
    try:
        return decode_z85(vector.path)[: vector.size]
    except ValueError as error:
        msg = f"{place.url} has a deletion vector in its log that is not base 85. Repair it with the software that wrote it."
        raise DataError(msg) from error


def _read_file(
    path: str, vectors: Mapping[int, DeletionVector], filesystem: pafs.FileSystem, version: int
) -> dict[int, IntArray]:
    """Return the deleted rows by data file, from one file of deletion vectors."""
    try:
        with filesystem.open_input_file(path) as source:
            whole = source.read() if len(vectors) > 1 else b""
            parts = {file: _read_vector(source, whole, vector) for file, vector in vectors.items()}
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: the file is gone, which has the deleted rows of version {version} of the table. VACUUM removes such "
            "files. Open a newer version, or restore the file."
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: the deletion vectors cannot be read: {error}. Check the file.") from error
    return {file: _decode_checked(_unframe(data, vectors[file], path), vectors[file], path) for file, data in parts.items()}


def _read_vector(source: pa.NativeFile, whole: bytes, vector: DeletionVector) -> bytes:
    """Return the bytes of one vector, with its size and its checksum."""
    start = vector.offset or 1  # the first byte of a file is the version of its format
    if whole:
        return whole[start : start + vector.size + FRAME_BYTES]
    return bytes(source.read_at(vector.size + FRAME_BYTES, start))


def _unframe(data: bytes, vector: DeletionVector, path: str) -> bytes:
    """Return the bytes between the size and the checksum of a vector, and check both."""
    size, body = int.from_bytes(data[:4], "big"), data[4:-4]
    if size != vector.size or len(body) != size or zlib.crc32(body) != int.from_bytes(data[-4:], "big"):
        raise DataError(
            f"{path}: the deletion vector at byte {vector.offset} is damaged: its size or its checksum differ; expected "
            f"{vector.size} bytes. Restore the file."
        )
    return body


def _decode_checked(data: bytes, vector: DeletionVector, where: str) -> IntArray:
    """Return the rows of a vector, and check their number."""
    try:
        rows = decode_bitmap(data)
    except (ValueError, IndexError) as error:
        msg = f"{where}: a deletion vector cannot be read: {error}; expected a bitmap of rows. Restore the file."
        raise DataError(msg) from error
    if len(rows) != vector.cardinality:
        raise DataError(
            f"{where}: a deletion vector deletes {len(rows)} rows, and the log says {vector.cardinality}. The file or the log "
            "is damaged. Restore the file, or open another version."
        )
    return rows


def decode_bitmap(data: bytes) -> IntArray:
    """Return the numbers in a bitmap, ascending, or raise `ValueError` if it does not have this format.

    Example:
        >>> decode_bitmap(decode_z85("^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L")).tolist()
        [3, 4, 7, 11, 18, 29]
    """
    parts = [np.zeros(0, dtype=np.int64), *(part + (key << 32) for key, part in _buckets(data))]
    numbers = np.concatenate(parts)
    if (np.diff(numbers) <= 0).any():
        raise ValueError("its numbers do not ascend")
    return numbers


def _buckets(data: bytes) -> Iterator[tuple[int, IntArray]]:
    """Yield the upper 31 bits of numbers, with their lower 32."""
    if int.from_bytes(data[:4], "little") == MAGIC:
        at = 12
        for _ in range(_number(data, 4, 8)):
            key = _number(data, at, 4)
            low, at = _bitmap(data, at + 4)
            yield from ((_check_key(key), part) for part in low)
        return
    order: Literal["big", "little"] = "big" if int.from_bytes(data[:4], "big") == OLD_MAGIC else "little"
    if int.from_bytes(data[:4], order) != OLD_MAGIC:
        raise ValueError(f"it begins with {data[:4]!r}")
    at = 8
    for key in range(int.from_bytes(data[4:8], order)):
        size = int.from_bytes(data[at : at + 4], order)
        low, _ = _bitmap(data, at + 4)
        yield from ((_check_key(key), part) for part in low)
        at += 4 + size


def _check_key(key: int) -> int:
    if key >= 1 << 31:
        raise ValueError(f"it has numbers from {key << 32} on")
    return key


def _bitmap(data: bytes, at: int) -> tuple[list[IntArray], int]:
    """Return the numbers of a 32-bit bitmap by container, and its end."""
    cookie = _number(data, at, 4)
    at += 4
    if cookie & 0xFFFF == RUNS:
        count = (cookie >> 16) + 1
        run_flags = np.unpackbits(_array(data, at, (count + 7) // 8, np.uint8), bitorder="little")
        at += (count + 7) // 8
    elif cookie == NO_RUNS:
        count, at = _number(data, at, 4), at + 4
        if count > 1 << 16:
            raise ValueError(f"it has {count} containers")
        run_flags = np.zeros(count, dtype=np.uint8)
    else:
        raise ValueError(f"it has a bitmap of kind {cookie}")
    heads = _array(data, at, 2 * count, np.dtype("<u2")).astype(np.int64)
    at += 4 * count
    if cookie == NO_RUNS or count >= MIN_WITH_OFFSETS:
        at += 4 * count  # the offsets are not needed: containers follow each other
    parts = []
    for number in range(count):
        low, at = _container(data, at, int(heads[2 * number + 1]) + 1, runs=bool(run_flags[number]))
        parts.append((heads[2 * number] << 16) + low)
    return parts, at


def _container(data: bytes, at: int, count: int, *, runs: bool) -> tuple[IntArray, int]:
    """Return the 16-bit numbers of one container, and its end."""
    if runs:
        number = _number(data, at, 2)
        pairs = _array(data, at + 2, 2 * number, np.dtype("<u2")).astype(np.int64)
        starts, lengths = pairs[0::2], pairs[1::2] + 1
        ends = np.cumsum(lengths)
        if number == 0 or ends[-1] != count or (starts + lengths > 1 << 16).any():
            raise ValueError(f"a container of {count} numbers has other runs")
        return np.arange(count) + np.repeat(starts - ends + lengths, lengths), at + 2 + 4 * number
    if count <= MOST_IN_ARRAY:
        return _array(data, at, count, np.dtype("<u2")).astype(np.int64), at + 2 * count
    bits = np.unpackbits(_array(data, at, BITMAP_BYTES, np.uint8), bitorder="little")
    return np.flatnonzero(bits), at + BITMAP_BYTES


def _number(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise ValueError(f"it ends after {len(data)} bytes")
    return int.from_bytes(data[at : at + size], "little")


def _array(data: bytes, at: int, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    if at + count * np.dtype(dtype).itemsize > len(data):
        raise ValueError(f"it ends after {len(data)} bytes")
    return np.frombuffer(data, dtype=dtype, count=count, offset=at)


def decode_z85(text: str) -> bytes:
    """Return the bytes of text in base 85, or raise `ValueError`; # stands for missing bytes at the start of the last word.

    Example:
        >>> decode_z85("HelloWorld").hex(), decode_z85("Hello##093").hex()
        ('864fd26fb559f75b', '864fd26f0300')
    """
    values = np.full(256, 85, dtype=np.int64)
    values[np.frombuffer(ALPHABET, dtype=np.uint8)] = np.arange(85)
    digits = values[np.frombuffer(text.encode(), dtype=np.uint8)]
    padding = len(text[-5:]) - len(text[-5:].lstrip("#"))  # a whole word never begins with the last digit
    digits[len(digits) - 5 : len(digits) - 5 + padding] = 0
    if len(digits) % 5 or padding > 3 or (digits > 84).any():  # noqa: PLR2004 - the digits of a word, and of this base
        raise ValueError(f"{text!r} is not base 85")
    words = digits.reshape(-1, 5) @ 85 ** np.arange(4, -1, -1)
    if (words >= 1 << 32).any():
        raise ValueError(f"{text!r} is not base 85")
    data = words.astype(">u4").tobytes()
    return data[:-4] + data[len(data) - 4 + padding :] if padding else data


def parse_vectors(descriptions: pa.StructArray, files: Sequence[int]) -> dict[int, DeletionVector]:
    """Return the deletion vectors of some files by the index of the file."""
    return {file: DeletionVector.of(descriptions[file].as_py()) for file in files}
