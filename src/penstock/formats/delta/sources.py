"""What holds the actions of a Delta log: lines of JSON, or Parquet files. Both give the same columns."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock.errors import DataError
from penstock.formats.delta.json import read_lines
from penstock.formats.delta.paths import resolved
from penstock.model import Place

__all__ = ["Lines", "LogChangedError", "Parquet", "commit_time", "load_actions", "read_texts"]

FEW = {"protocol": b'"protocol"', "metaData": b'"metaData"', "sidecar": b'"sidecar"'}
"""The actions of which there are few, and what their lines hold."""

ADJACENT = re.compile(rb"\}[ \t]*\{")
"""Where one object may end and another begin in the same line."""

SPACE = re.compile(r"[ \t\r\n]*")


class LogChangedError(Exception):
    """A file of the log went away while it was read: the log is being cleaned up."""


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """Actions as lines of JSON, one in each: commits in their order, or a checkpoint of that kind."""

    paths: tuple[str, ...]
    texts: tuple[bytes, ...]

    @classmethod
    def of(cls, paths: Sequence[str], texts: Sequence[bytes]) -> Lines:
        """Return what files hold, however their JSON is laid out.

        Raises:
            DataError: If one is not JSON objects in UTF-8.
        """
        return cls(tuple(paths), tuple(_one_per_line(text, path) for path, text in zip(paths, texts, strict=True)))

    @property
    def name(self) -> str:
        """The first of the files, for messages."""
        return self.paths[0]

    def part(self, at: int) -> Lines:
        """Return one of the files."""
        return Lines((self.paths[at],), (self.texts[at],))

    def refuse_empty(self, compacted: Collection[str]) -> None:
        """Refuse commits without any action, which a writer that was cut short leaves; compacted ones are doubted elsewhere.

        Raises:
            DataError: If there is one.
        """
        for path, text in zip(self.paths, self.texts, strict=True):
            if path not in compacted and not text.strip():
                raise _unreadable(path, "it is empty, and a commit holds at least one action")

    def few(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the actions of one of `FEW`, in the order of the log."""
        for path, text in zip(self.paths, self.texts, strict=True):
            at = text.find(FEW[kind])
            while at >= 0:
                end = text.find(b"\n", at) % (len(text) + 1)
                found = _loaded(text[text.rfind(b"\n", 0, at) + 1 : end], path).get(kind)
                if isinstance(found, dict):
                    yield found
                elif found is not None:
                    raise _unreadable(path, f"{kind} is {found!r}, and no JSON object")
                at = text.find(FEW[kind], end)

    def doubt(self, place: Place) -> str | None:
        """Return what makes the order of compacted commits count, which a reconciled file does not need; None where nothing.

        A file that holds the same action twice says nothing else than once.
        """
        if not any(text.strip() for text in self.texts):
            return "is empty"
        for kind in ("metaData", "protocol"):
            told = list(self.few(kind))
            if any(action != told[0] for action in told):
                return f"has several {kind} actions"
        table = self.actions(place, [])
        added = table.filter(table["alive"])["path"]
        if pc.count_distinct(table["key"]).as_py() == len(table) and pc.count_distinct(added).as_py() == len(added):
            return None
        files: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        actions = (action for text, path in zip(self.texts, self.paths, strict=True) for action in load_actions(text, path))
        touching = [action for action in actions if action.get("add") or action.get("remove")]
        for action, key, path in zip(touching, table["key"].to_pylist(), table["path"].to_pylist(), strict=True):
            files[path].append((key, action))
        for of_file in files.values():
            adds = [(key, action) for key, action in of_file if action.get("add")]
            removed = {key for key, action in of_file if action.get("remove")}
            if any(key in removed for key, _ in adds):
                return f"both adds and removes {adds[0][1]['add']['path']!r}"
            if any(action != adds[0][1] for _, action in adds):
                return f"adds {adds[0][1]['add']['path']!r} several times"
        return None

    def actions(self, place: Place, partitions: Sequence[str]) -> pa.Table:
        """Return all actions on files, in the order of the log; see `_table` for the columns."""
        vector = [("deletionVector", pa.struct(_vector()))]
        values = [("partitionValues", pa.struct([(name, pa.string()) for name in partitions]))] if partitions else []
        facts = [("path", pa.string()), ("size", pa.int64()), ("modificationTime", pa.int64()), ("stats", pa.string())]
        wanted = {"add": pa.struct([*facts, *vector, *values]), "remove": pa.struct([facts[0], *vector])}
        lines = [line for text in self.texts for line in text.splitlines() if line.strip()]
        try:
            found = read_lines(lines, pa.schema(wanted), strict=True)
        except ValueError as error:
            raise self._broken(error) from error
        touched = pc.or_(found["add"].is_valid(), found["remove"].is_valid())
        if pc.any(pc.and_(found["add"].is_valid(), found["remove"].is_valid())).as_py():
            raise self._broken(ValueError("one object both adds and removes a file"))
        found = found.filter(touched).combine_chunks()
        added, removed = (_single(found[name]) for name in ("add", "remove"))
        alive = added.is_valid()
        columns = {name: pc.struct_field(added, name) for name in ("size", "modificationTime", "stats")}
        for name in ("path", "deletionVector"):
            columns[name] = pc.if_else(alive, pc.struct_field(added, name), pc.struct_field(removed, name))
        inside = {name: pc.struct_field(added, ["partitionValues", name]) for name in partitions}
        return _table(place, columns, inside, alive)

    def _broken(self, error: ValueError) -> DataError:
        """Return the error for a line that cannot be read, with its file where it is no JSON at all."""
        for path, text in zip(self.paths, self.texts, strict=True):
            for line in text.splitlines():
                if line.strip():
                    _loaded(line, path)
        return DataError(f"{self.paths[-1]}, or a file before it: an action cannot be read: {error}. Restore the file.")


@dataclass(frozen=True, slots=True, eq=False)
class Parquet:
    """Actions as a Parquet file: a checkpoint, a part of one, or what a checkpoint refers to."""

    path: str
    file: pq.ParquetFile

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self.path

    @classmethod
    def open(cls, filesystem: pafs.FileSystem, path: str) -> Parquet:
        """Return a file, read into memory.

        Raises:
            DataError: If it cannot be read.
            LogChangedError: If it is gone.
        """
        (data,) = read_texts(filesystem, [path])
        with _of_file(path):
            return cls(path, pq.ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="us"))

    def few(self, kind: str) -> list[dict[str, Any]]:
        """Return the actions of one of `FEW`."""
        with _of_file(self.path):
            if kind not in self.file.schema_arrow.names:
                return []
            found = self._read([kind])[kind]
            return [_with_dicts(action) for action in found.filter(found.is_valid()).to_pylist()]

    def actions(self, place: Place, partitions: Sequence[str]) -> pa.Table:
        """Return the files that it has; what it says of removed ones is only for those who delete files."""
        with _of_file(self.path):
            schema = self.file.schema_arrow
            has = {field.name for field in schema.field("add").type} if "add" in schema.names else set()
            needed = ["path", *(["partitionValues"] if partitions else [])]
            if has and not has.issuperset(needed):
                raise _unreadable(self.path, f"its files have no {' or no '.join(sorted(set(needed) - has))}")
            facts = [name for name in ("path", "size", "modificationTime", "stats", "deletionVector") if name in has]
            added = self._added([*facts, *needed[1:]]) if has else pa.array([], pa.struct([("path", pa.string())]))
            columns = {name: pc.struct_field(added, name) for name in facts or ["path"]}
            if "stats_parsed" in has and ("stats" not in columns or columns["stats"].null_count):
                columns["stats_parsed"] = pc.struct_field(self._added(["stats_parsed"]), "stats_parsed")
            inside = {}
            if has:
                inside = {name: pc.map_lookup(pc.struct_field(added, needed[1]), name, "last") for name in partitions}
            return _table(place, columns, inside, pa.array(np.ones(len(added), dtype=np.bool_)))

    def _added(self, names: Sequence[str]) -> pa.Array:
        """Return some fields of all `add` actions."""
        found = self._read([f"add.{name}" for name in names])["add"]
        return _single(found.filter(found.is_valid()))

    def _read(self, columns: Sequence[str]) -> pa.Table:
        found = self.file.read(list(columns))
        found.validate(full=True)  # text may be any bytes, and counts of a damaged file anything
        return found


@contextmanager
def _of_file(path: str) -> Iterator[None]:
    """Tell what goes wrong with a Parquet file of the log as an error of ours, whichever way it is damaged."""
    try:
        yield
    except (DataError, LogChangedError):
        raise
    except (OSError, ValueError, TypeError, LookupError, AttributeError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _vector() -> list[tuple[str, pa.DataType]]:
    """Return the fields of a deletion vector's description."""
    return [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int64()),
        ("sizeInBytes", pa.int64()),
        ("cardinality", pa.int64()),
    ]


def _table(place: Place, told: Mapping[str, pa.Array], partitions: Mapping[str, pa.Array], alive: pa.Array) -> pa.Table:
    """Return actions on files in the columns that all sources have.

    These are `path` as the filesystem names it, `raw` as the log does, `size`, `modified`, `stats` as text, `vector` (of
    deleted rows), `alive` for files that are added and not removed, `key` for what actions on the same file and vector
    share, a column `=name` for each partition column, and `parsed` where statistics come as a struct.
    """
    count = len(alive)
    if told["path"].null_count:
        msg = f"{place.url}: an action of the table's log names no file. A path was expected. Restore the log."
        raise DataError(msg)
    path = resolved(told["path"].cast(pa.string()), place)
    if pc.any(pc.match_substring(path, "\0")).as_py():
        msg = f"{place.url}: an action of the table's log names a file with a zero byte, which no file has. Restore the log."
        raise DataError(msg)
    vector = told.get("deletionVector", pa.nulls(count, pa.struct(_vector())))
    parts = {name: pc.struct_field(vector, name).cast(kind) for name, kind in _vector() if _has(vector.type, name)}
    parts = {name: parts.get(name, pa.nulls(count, kind)) for name, kind in _vector()}
    offset = pc.binary_join_element_wise("@", parts["offset"].cast(pa.string()), "").fill_null("")
    name = pc.binary_join_element_wise(parts["storageType"], parts["pathOrInlineDv"], offset, "").fill_null("")
    columns = {
        "path": path,
        "raw": told["path"].cast(pa.string()),
        "size": _numbers(told.get("size"), count),
        "modified": _numbers(told.get("modificationTime"), count),
        "stats": told["stats"].cast(pa.large_string()) if "stats" in told else pa.nulls(count, pa.large_string()),
        "vector": pa.StructArray.from_arrays(list(parts.values()), names=list(parts), mask=vector.is_null()),
        "alive": alive,
        "key": pc.binary_join_element_wise(path, name, "\0"),
    }
    columns |= {f"={column}": values.cast(pa.string()) for column, values in partitions.items()}
    columns |= {"parsed": told["stats_parsed"]} if "stats_parsed" in told else {}
    return pa.table(columns)


def _numbers(values: pa.Array | None, count: int) -> pa.Array:
    return pa.array(np.zeros(count, dtype=np.int64)) if values is None else values.cast(pa.int64()).fill_null(0)


def _has(kind: pa.DataType, name: str) -> bool:
    return bool(kind.get_field_index(name) >= 0)


def _single(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def _with_dicts(action: dict[str, Any]) -> dict[str, Any]:
    """Return an action whose map of options is a dict, as it is in JSON."""
    return {key: dict(value or ()) if key == "configuration" else value for key, value in action.items()}


def read_texts(filesystem: pafs.FileSystem, paths: Sequence[str], threads: int = 16) -> list[bytes]:
    """Return the bytes of some files of a log, read in parallel.

    Raises:
        DataError: If one cannot be read.
        LogChangedError: If one is gone.
    """

    def read(path: str) -> bytes:
        try:
            with filesystem.open_input_file(path) as source:
                found: bytes = source.read()
                return found
        except FileNotFoundError as error:
            raise LogChangedError(path) from error
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(path, error) from error

    with ThreadPoolExecutor(max(1, min(threads, len(paths))), thread_name_prefix="penstock-delta") as pool:
        return list(pool.map(read, paths))


def commit_time(filesystem: pafs.FileSystem, path: str) -> int:
    """Return the time that a commit says it was made, in milliseconds since the epoch.

    Raises:
        DataError: If it says none.
    """
    (text,) = read_texts(filesystem, [path])
    for action in load_actions(text, path):
        told = action.get("commitInfo")
        if isinstance(told, dict) and isinstance(told.get("inCommitTimestamp"), int):
            return int(told["inCommitTimestamp"])
    msg = f"{path}: the commit does not say when it was made, as commits of this table do. Give a version instead of a time."
    raise DataError(msg)


def load_actions(text: bytes, path: str) -> list[dict[str, Any]]:
    """Return the JSON objects of a file of the log, however they are laid out.

    Raises:
        DataError: If it holds anything else.

    Example:
        >>> load_actions(b'{"add": 1} { "remove": 2 }', "0.json")
        [{'add': 1}, {'remove': 2}]
    """
    return [_loaded(line, path) for line in _one_per_line(text, path).splitlines() if line.strip()]


def _one_per_line(text: bytes, path: str) -> bytes:
    """Return a file of JSON objects with each of them in a line of its own, as most writers lay them out."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise _unreadable(path, f"it is not UTF-8 at byte {error.start}") from error
    lines = text.split(b"\n")
    # Within an object, no line that ends with a brace is followed by one that begins with a brace.
    if all(line[:1] == b"{" and line[-1:] == b"}" for line in lines if line) and not ADJACENT.search(text):
        return text
    decoder, told, found = json.JSONDecoder(), text.decode("utf-8-sig"), []
    at = _after_space(told, 0)
    while at < len(told):
        try:
            _, end = decoder.raw_decode(told, at)
        except (ValueError, RecursionError) as error:
            raise _unreadable(path, f"it is no JSON: {error}") from error
        found.append(told[at:end].replace("\r", " ").replace("\n", " "))
        at = _after_space(told, end)
    return "\n".join(found).encode()


def _after_space(text: str, at: int) -> int:
    found = SPACE.match(text, at)
    return at if found is None else found.end()


def _loaded(line: bytes, path: str) -> dict[str, Any]:
    """Return one line of a log."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"a line is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise _unreadable(path, f"a line is no JSON object: {line[:80]!r}")
    return found


def _unreadable(path: str, why: object) -> DataError:
    why = " ".join(str(why).split()).rstrip(".")
    return DataError(f"{path}: this file of the table's log cannot be read: {why}. A whole one was expected. Restore the file.")
