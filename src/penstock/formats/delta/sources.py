"""Sources of the actions in a Delta log: lines of JSON, or Parquet files. Both yield the same columns."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._engine.runtime.threads import parallel_map
from penstock.errors import DataError
from penstock.formats.delta.json import read_lines
from penstock.formats.delta.paths import resolve_all
from penstock.model import Place

__all__ = ["Lines", "LogChangedError", "Parquet", "as_array", "commit_time", "load_actions", "read_texts"]

RARE_ACTIONS = {"protocol": b'"protocol"', "metaData": b'"metaData"', "sidecar": b'"sidecar"'}
"""Kinds of actions of which a log has few, and a text that their lines contain."""

ADJACENT = re.compile(rb"\}[ \t]*\{")
"""A possible boundary of two objects in one line."""

SPACE = re.compile(r"[ \t\r\n]*")


class LogChangedError(Exception):
    """A file of the log was deleted while it was read: the log is being cleaned up."""


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """Actions as lines of JSON: commits in their order, or a JSON checkpoint."""

    paths: tuple[str, ...]
    texts: tuple[bytes, ...]

    @classmethod
    def of(cls, paths: Sequence[str], texts: Sequence[bytes]) -> Lines:
        """Return the actions of files, or raise `DataError` if one is not JSON objects in UTF-8, in any layout."""
        return cls(tuple(paths), tuple(_one_per_line(text, path) for path, text in zip(paths, texts, strict=True)))

    @property
    def name(self) -> str:
        """The first of the files, for messages."""
        return self.paths[0]

    def part(self, at: int) -> Lines:
        """Return one of the files."""
        return Lines((self.paths[at],), (self.texts[at],))

    def refuse_empty(self, compacted: Collection[str]) -> None:
        """Raise `DataError` for commits without an action, left by an interrupted writer; others check compacted commits."""
        for path, text in zip(self.paths, self.texts, strict=True):
            if path not in compacted and not text.strip():
                raise _file_error(path, "it is empty, and a commit has at least one action")

    def find(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the actions of one of `RARE_ACTIONS`, in the order of the log."""
        for path, text in zip(self.paths, self.texts, strict=True):
            at = text.find(RARE_ACTIONS[kind])
            while at >= 0:
                end = text.find(b"\n", at) % (len(text) + 1)
                action = _parse_line(text[text.rfind(b"\n", 0, at) + 1 : end], path).get(kind)
                if isinstance(action, dict):
                    yield action
                elif action is not None:
                    raise _file_error(path, f"{kind} is {action!r}, and not a JSON object")
                at = text.find(RARE_ACTIONS[kind], end)

    def find_unreconciled(self, place: Place) -> str | None:
        """Return why compacted commits are not reconciled, so that their order matters; None if they are.

        An action that occurs twice counts as one.
        """
        if not any(text.strip() for text in self.texts):
            return "is empty"
        for kind in ("metaData", "protocol"):
            of_kind = list(self.find(kind))
            if any(action != of_kind[0] for action in of_kind):
                return f"has several {kind} actions"
        table = self.actions(place, [])
        added = table.filter(table["alive"])["path"]
        if pc.count_distinct(table["key"]).as_py() == len(table) and pc.count_distinct(added).as_py() == len(added):
            return None
        files: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        actions = (action for text, path in zip(self.texts, self.paths, strict=True) for action in load_actions(text, path))
        on_files = [action for action in actions if action.get("add") or action.get("remove")]
        for action, key, path in zip(on_files, table["key"].to_pylist(), table["path"].to_pylist(), strict=True):
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
        schema = pa.schema({"add": pa.struct([*facts, *vector, *values]), "remove": pa.struct([facts[0], *vector])})
        lines = [line for text in self.texts for line in text.splitlines() if line.strip()]
        try:
            table = read_lines(lines, schema, strict=True)
        except ValueError as error:
            raise self._line_error(error) from error
        if pc.any(pc.and_(table["add"].is_valid(), table["remove"].is_valid())).as_py():
            raise self._line_error(ValueError("one object both adds and removes a file"))
        table = table.filter(pc.or_(table["add"].is_valid(), table["remove"].is_valid()))
        added, removed = (as_array(table[name]) for name in ("add", "remove"))
        alive = added.is_valid()
        columns = {name: pc.struct_field(added, name) for name in ("size", "modificationTime", "stats")}
        for name in ("path", "deletionVector"):
            columns[name] = pc.if_else(alive, pc.struct_field(added, name), pc.struct_field(removed, name))
        partition_values = {name: pc.struct_field(added, ["partitionValues", name]) for name in partitions}
        return _table(place, columns, partition_values, alive)

    def _line_error(self, error: ValueError) -> DataError:
        """Return the error for a line that cannot be read; raise one with its file if the line is not JSON."""
        for path, text in zip(self.paths, self.texts, strict=True):
            for line in text.splitlines():
                if line.strip():
                    _parse_line(line, path)
        return DataError(f"{self.paths[-1]}, or a file before it: an action cannot be read: {error}. Restore the file.")


@dataclass(frozen=True, slots=True, eq=False)
class Parquet:
    """Actions as a Parquet file: a checkpoint, a part of one, or a sidecar."""

    path: str
    file: pq.ParquetFile

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self.path

    @classmethod
    def open(cls, filesystem: pafs.FileSystem, path: str) -> Parquet:
        """Return a file, read into memory; raise `DataError` or `LogChangedError` if that fails."""
        (data,) = read_texts(filesystem, [path])
        with _parquet_errors(path):
            return cls(path, pq.ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="us"))

    def find(self, kind: str) -> list[dict[str, Any]]:
        """Return the actions of one of `RARE_ACTIONS`."""
        with _parquet_errors(self.path):
            if kind not in self.file.schema_arrow.names:
                return []
            column = self._read([kind])[kind]
            return [_with_dicts(action) for action in column.filter(column.is_valid()).to_pylist()]

    def actions(self, place: Place, partitions: Sequence[str]) -> pa.Table:
        """Return the `add` actions; its `remove` actions are only for software that deletes files."""
        with _parquet_errors(self.path):
            schema = self.file.schema_arrow
            has = {field.name for field in schema.field("add").type} if "add" in schema.names else set()
            required = ["path", *(["partitionValues"] if partitions else [])]
            if has and not has.issuperset(required):
                raise _file_error(self.path, f"its files have no {' or no '.join(sorted(set(required) - has))}")
            facts = [name for name in ("path", "size", "modificationTime", "stats", "deletionVector") if name in has]
            added = self._read_adds([*facts, *required[1:]]) if has else pa.array([], pa.struct([("path", pa.string())]))
            columns = {name: pc.struct_field(added, name) for name in facts or ["path"]}
            if "stats_parsed" in has and ("stats" not in columns or columns["stats"].null_count):
                columns["stats_parsed"] = pc.struct_field(self._read_adds(["stats_parsed"]), "stats_parsed")
            values = {}
            if has:
                values = {name: pc.map_lookup(pc.struct_field(added, required[1]), name, "last") for name in partitions}
            return _table(place, columns, values, pa.array(np.ones(len(added), dtype=np.bool_)))

    def _read_adds(self, names: Sequence[str]) -> pa.Array:
        """Return some fields of all `add` actions."""
        column = self._read([f"add.{name}" for name in names])["add"]
        return as_array(column.filter(column.is_valid()))

    def _read(self, columns: Sequence[str]) -> pa.Table:
        table = self.file.read(list(columns))
        table.validate(full=True)  # a damaged file may have invalid text and counts
        return table


@contextmanager
def _parquet_errors(path: str) -> Iterator[None]:
    """Raise the errors of a damaged Parquet file of the log as `DataError`."""
    try:
        yield
    except (DataError, LogChangedError):
        raise
    except (OSError, ValueError, TypeError, LookupError, AttributeError, pa.ArrowException) as error:
        raise _file_error(path, error) from error


def _vector() -> list[tuple[str, pa.DataType]]:
    """Return the fields of the description of a deletion vector."""
    return [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int64()),
        ("sizeInBytes", pa.int64()),
        ("cardinality", pa.int64()),
    ]


def _table(place: Place, fields: Mapping[str, pa.Array], partitions: Mapping[str, pa.Array], alive: pa.Array) -> pa.Table:
    """Return actions on files in the columns that all sources have.

    These are `path` in the filesystem, `raw` as in the log, `size`, `modified`, `stats` as text, `vector` (of deleted rows),
    `alive` for `add` actions, `key` which actions on the same file and vector share, a column `=name` for each partition
    column, and `parsed` if statistics are structs.
    """
    count = len(alive)
    if fields["path"].null_count:
        raise DataError(f"{place.url}: an action of the table's log names no file; expected a path. Restore the log.")
    path = resolve_all(fields["path"].cast(pa.string()), place)
    if pc.any(pc.match_substring(path, "\0")).as_py():
        msg = f"{place.url}: an action of the table's log names a file with a zero byte, which no file has. Restore the log."
        raise DataError(msg)
    vector = fields.get("deletionVector", pa.nulls(count, pa.struct(_vector())))
    parts = {
        name: pc.struct_field(vector, name).cast(kind) if vector.type.get_field_index(name) >= 0 else pa.nulls(count, kind)
        for name, kind in _vector()
    }
    offset = pc.binary_join_element_wise("@", parts["offset"].cast(pa.string()), "").fill_null("")
    name = pc.binary_join_element_wise(parts["storageType"], parts["pathOrInlineDv"], offset, "").fill_null("")
    columns = {
        "path": path,
        "raw": fields["path"].cast(pa.string()),
        "size": _integers(fields.get("size"), count),
        "modified": _integers(fields.get("modificationTime"), count),
        "stats": fields["stats"].cast(pa.large_string()) if "stats" in fields else pa.nulls(count, pa.large_string()),
        "vector": pa.StructArray.from_arrays(list(parts.values()), names=list(parts), mask=vector.is_null()),
        "alive": alive,
        "key": pc.binary_join_element_wise(path, name, "\0"),
    }
    columns |= {f"={column}": values.cast(pa.string()) for column, values in partitions.items()}
    columns |= {"parsed": fields["stats_parsed"]} if "stats_parsed" in fields else {}
    return pa.table(columns)


def _integers(values: pa.Array | None, count: int) -> pa.Array:
    return pa.array(np.zeros(count, dtype=np.int64)) if values is None else values.cast(pa.int64()).fill_null(0)


def as_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _with_dicts(action: dict[str, Any]) -> dict[str, Any]:
    """Return an action whose map of options is a dict, as in JSON."""
    return {key: dict(value or ()) if key == "configuration" else value for key, value in action.items()}


def read_texts(filesystem: pafs.FileSystem, paths: Sequence[str], threads: int = 16) -> list[bytes]:
    """Return the bytes of some files of a log, read in parallel; raise `LogChangedError` if one is gone."""

    def read(path: str) -> bytes:
        try:
            with filesystem.open_input_file(path) as source:
                return bytes(source.read())
        except FileNotFoundError as error:
            raise LogChangedError(path) from error
        except (OSError, pa.ArrowException) as error:
            raise _file_error(path, error) from error

    return list(parallel_map(read, paths, threads))


def commit_time(filesystem: pafs.FileSystem, path: str) -> int:
    """Return the time in a commit, in milliseconds since the epoch, or raise `DataError` if it has none."""
    (text,) = read_texts(filesystem, [path])
    for action in load_actions(text, path):
        info = action.get("commitInfo")
        if isinstance(info, dict) and isinstance(info.get("inCommitTimestamp"), int):
            return int(info["inCommitTimestamp"])
    raise DataError(f"{path}: the commit has no time, which commits of this table must have. Give a version instead of a time.")


def load_actions(text: bytes, path: str) -> list[dict[str, Any]]:
    """Return the JSON objects of a file of the log, in any layout, or raise `DataError` if it has anything else.

    Example:
        >>> load_actions(b'{"add": 1} { "remove": 2 }', "0.json")
        [{'add': 1}, {'remove': 2}]
    """
    return [_parse_line(line, path) for line in _one_per_line(text, path).splitlines() if line.strip()]


def _one_per_line(text: bytes, path: str) -> bytes:
    """Return a file of JSON objects with one object per line, as most writers write them."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise _file_error(path, f"it is not UTF-8 at byte {error.start}") from error
    lines = text.split(b"\n")
    # Within an object, no line that ends with a brace is followed by one that begins with a brace.
    if all(line[:1] == b"{" and line[-1:] == b"}" for line in lines if line) and not ADJACENT.search(text):
        return text
    decoder, decoded, objects = json.JSONDecoder(), text.decode("utf-8-sig"), []
    at = _skip_space(decoded, 0)
    while at < len(decoded):
        try:
            _, end = decoder.raw_decode(decoded, at)
        except (ValueError, RecursionError) as error:
            raise _file_error(path, f"it is not JSON: {error}") from error
        objects.append(decoded[at:end].replace("\r", " ").replace("\n", " "))
        at = _skip_space(decoded, end)
    return "\n".join(objects).encode()


def _skip_space(text: str, at: int) -> int:
    match = SPACE.match(text, at)
    return at if match is None else match.end()


def _parse_line(line: bytes, path: str) -> dict[str, Any]:
    try:
        action = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _file_error(path, f"a line is not JSON: {error}") from error
    if not isinstance(action, dict):
        raise _file_error(path, f"a line is not a JSON object: {line[:80]!r}")
    return action


def _file_error(path: str, why: object) -> DataError:
    why = " ".join(str(why).split()).rstrip(".")
    return DataError(f"{path}: this file of the table's log cannot be read: {why}; expected a complete file. Restore it.")
