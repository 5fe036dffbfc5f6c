"""A cache in files of this machine: `petastorm.local_disk_cache`. Nothing in it is pickled."""

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

ROWS_TO_FIT = 5


class LocalDiskCache(CacheBase):
    """Keeps Arrow tables, arrays and plain values in a directory, as many as fit.

    Args:
        path: The directory.
        size_limit_bytes: What all of it may take.
        expected_row_size_bytes: What one value takes, about.
        shards: A number that the limit must be enough for.
        cleanup: Whether the directory is deleted when the cache is cleaned up.
        settings: `eviction_policy="none"` to keep what was stored first; by default what was stored first goes first.

    Raises:
        ValueError: If the limit is too small to be of use.
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
        self._keeps = settings.get("eviction_policy", "least-recently-stored") == "none"
        if not self._keeps and size_limit_bytes / shards < ROWS_TO_FIT * expected_row_size_bytes:
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
        """Return what another process needs."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make it again."""
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def get(self, key: Any, fill_cache_func: Callable[[], Any]) -> Any:
        """Return what is kept under a key; where nothing is, what a function makes, which is kept if it can be."""
        name = hashlib.blake2b(repr(key).encode(), digest_size=20).hexdigest()
        found = self._read(name)
        if found is not None:
            return found
        value = fill_cache_func()
        if value is not None:
            self._write(name, value)
        return value

    def cleanup(self) -> None:
        """Delete the directory, where that was asked for; it may be called again, and while readers still use the cache.

        What cannot be deleted is reported on standard output, as in Petastorm.
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
        """Delete the directory, in which threads and processes may be writing or deleting files.

        It gets another name first: no file can appear in it then, for all are made by the path of the cache.
        """
        moved = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}")
        try:
            self._path.rename(moved)
        except FileNotFoundError:
            return
        except OSError:  # a mount point, or a directory above that may not be changed
            shutil.rmtree(self._path, ignore_errors=True)
            shutil.rmtree(self._path)  # which says what is left, and why
            return
        try:
            shutil.rmtree(moved)
        except OSError:
            with contextlib.suppress(OSError):
                moved.rename(self._path)  # whoever looks for what is left looks there
            raise

    def size(self) -> int:
        """Return the bytes that are kept."""
        return sum(size for _, size, _ in self._entries())

    volume = size

    def close(self) -> None:
        """Close it: no file stays open between calls, so there is nothing to do."""

    @property
    def _cache(self) -> Self:
        """What stores the values, by the name that Petastorm has for it: the cache itself."""
        return self

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Return what is kept, oldest first."""
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._path):
                with contextlib.suppress(OSError):
                    info = entry.stat()
                    found.append((info.st_mtime, info.st_size, Path(entry.path)))
        return sorted(found)

    def _read(self, name: str) -> Any:
        """Return what a file holds; None where there is none."""
        table = self._path / f"{name}.arrow"
        try:
            if table.exists():
                with pa.memory_map(str(table)) as source:
                    return pa.ipc.open_file(source).read_all()
            return load_value((self._path / f"{name}.value").read_bytes())
        except (OSError, ValueError, KeyError, pa.ArrowException):
            return None

    def _write(self, name: str, value: Any) -> None:
        """Keep a value; what cannot be kept is not."""
        try:
            ending, data = _stored(value)
        except UnsupportedValueError:
            return
        with self._lock:
            if not self._make_room(len(data)):
                return
            with contextlib.suppress(OSError):
                handle, temporary = tempfile.mkstemp(dir=self._path, suffix=".tmp")
                with os.fdopen(handle, "wb") as target:
                    target.write(data)
                Path(temporary).replace(self._path / f"{name}{ending}")

    def _make_room(self, size: int) -> bool:
        """Return whether a value of some bytes may be kept, after others that are older have gone."""
        entries = self._entries()
        used = sum(length for _, length, _ in entries)
        if self._keeps:
            return used < self._limit
        for _, length, path in entries:
            if used + size <= self._limit:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            used -= length
        return used + size <= self._limit


def _stored(value: Any) -> tuple[str, bytes | memoryview]:
    """Return how a value's file ends, and its bytes."""
    if not isinstance(value, pa.Table):
        return ".value", dump_value(value)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, value.schema) as writer:
        writer.write_table(value)
    return ".arrow", memoryview(sink.getvalue()).cast("B")
