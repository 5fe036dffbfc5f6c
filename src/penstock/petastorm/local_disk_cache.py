"""`petastorm.local_disk_cache`: a cache in local files. No pickles are used."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from penstock.petastorm._impl.cached_values import UnsupportedValueError, dump_value, load_value
from penstock.petastorm.cache import CacheBase

__all__ = ["LocalDiskCache"]

MIN_ROWS = 5
"""Rows that a shard of the cache must have space for."""


class LocalDiskCache(CacheBase):
    """Stores Arrow tables, arrays and plain values in a directory, up to a size limit.

    Args:
        path: The directory.
        size_limit_bytes: The size limit.
        expected_row_size_bytes: The approximate size of a value.
        shards: Used in the check of the limit only.
        cleanup: Whether `cleanup()` deletes the directory.
        settings: `eviction_policy="none"` never deletes a value; by default the oldest values are deleted.

    Raises:
        ValueError: If the limit is too small.
    """

    def __init__(
        self,
        path: str,
        size_limit_bytes: int,
        expected_row_size_bytes: int,
        shards: int = 6,
        cleanup: bool = True,
        **settings: Any,
    ) -> None:
        """Make the directory."""
        self._never_evicts = settings.get("eviction_policy", "least-recently-stored") == "none"
        if not self._never_evicts and size_limit_bytes / shards < MIN_ROWS * expected_row_size_bytes:
            msg = (
                "Condition 'size_limit_bytes / shards < 5 * expected_row_size_bytes' needs to hold, otherwise, newly added "
                f"cached values might end up being immediately evicted. Got {size_limit_bytes}, {shards} and "
                f"{expected_row_size_bytes}: give a larger limit."
            )
            raise ValueError(msg)
        self._path, self._limit, self._cleanup = Path(path).absolute(), size_limit_bytes, cleanup
        self._path.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the lock."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the attributes, with a new lock."""
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def get(self, key: Any, fill_cache_func: Callable[[], Any]) -> Any:
        """Return the cached value of a key; call `fill_cache_func` for it, and cache it, if there is none."""
        name = hashlib.blake2b(repr(key).encode(), digest_size=20).hexdigest()
        cached = self._read(name)
        if cached is not None:
            return cached
        value = fill_cache_func()
        if value is not None:
            self._write(name, value)
        return value

    def cleanup(self) -> None:
        """Delete the directory if the `cleanup` option is set; readers may still use the cache.

        Errors are reported on standard output, as in Petastorm.
        """
        if not self._cleanup:
            return
        try:
            self._cache.close()
        except (OSError, AttributeError) as error:
            print(f"Error closing cache: {error}", flush=True)  # noqa: T201 - as Petastorm does
        try:
            self._remove()
        except OSError as error:
            print(f"Error during rmtree: {error}", flush=True)  # noqa: T201 - as Petastorm does

    def _remove(self) -> None:
        """Delete the directory, while threads and processes may write or delete files in it.

        It is renamed first, so that no file can be created in it.
        """
        moved = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}")
        try:
            self._path.rename(moved)
        except FileNotFoundError:
            return
        except OSError:  # a mount point, or a read-only parent directory
            shutil.rmtree(self._path, ignore_errors=True)
            shutil.rmtree(self._path)  # raises the error of a remaining file
            return
        try:
            shutil.rmtree(moved)
        except OSError:
            with contextlib.suppress(OSError):
                moved.rename(self._path)  # remaining files stay at the path of the cache
            raise

    def size(self) -> int:
        """Return the size of all values in bytes."""
        return sum(size for _, size, _ in self._entries())

    volume = size

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""

    @property
    def _cache(self) -> Self:
        """The cache itself, under a private name of Petastorm."""
        return self

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Return time, size and path of each value, oldest first."""
        entries = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._path):
                with contextlib.suppress(OSError):
                    info = entry.stat()
                    entries.append((info.st_mtime, info.st_size, Path(entry.path)))
        return sorted(entries)

    def _read(self, name: str) -> Any:
        """Return a value; None if it is not stored."""
        table = self._path / f"{name}.arrow"
        try:
            if table.exists():
                with pa.memory_map(str(table)) as source:
                    return pa.ipc.open_file(source).read_all()
            return load_value((self._path / f"{name}.value").read_bytes())
        except (OSError, ValueError, KeyError, pa.ArrowException):
            return None

    def _write(self, name: str, value: Any) -> None:
        """Store a value, if its type can be stored and there is enough space."""
        try:
            suffix, data = _serialize(value)
        except UnsupportedValueError:
            return
        with self._lock:
            if not self._evict_for(len(data)):
                return
            with contextlib.suppress(OSError):
                handle, temporary = tempfile.mkstemp(dir=self._path, suffix=".tmp")
                with os.fdopen(handle, "wb") as target:
                    target.write(data)
                Path(temporary).replace(self._path / f"{name}{suffix}")

    def _evict_for(self, size: int) -> bool:
        """Delete old values until a new one of `size` bytes fits; return whether it does."""
        entries = self._entries()
        used = sum(length for _, length, _ in entries)
        if self._never_evicts:
            return used < self._limit
        for _, length, path in entries:
            if used + size <= self._limit:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            used -= length
        return used + size <= self._limit


def _serialize(value: Any) -> tuple[str, bytes | memoryview]:
    """Return the file suffix of a value, and its bytes."""
    if not isinstance(value, pa.Table):
        return ".value", dump_value(value)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, value.schema) as writer:
        writer.write_table(value)
    return ".arrow", memoryview(sink.getvalue()).cast("B")
