"""A change of a Delta table: data files are added to the directory, and one commit makes all of them visible.

Files that no commit names belong to no table, so that readers never see the files of a writer that died.
"""

from __future__ import annotations

import json
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock.errors import ArgumentError, DataChangedError, DataError
from penstock.formats._hive import hive_values
from penstock.formats.delta.append import check_append
from penstock.formats.delta.commit import (
    check_exclusive_create,
    check_storage,
    create_exclusive,
    delete_if_exists,
    invalidate_cache,
    remove_empty_directory,
    sync_files,
)
from penstock.formats.delta.encode_actions import add_action, check_names, delta_type, schema_text, stored_fields
from penstock.formats.delta.log import LOG, list_log
from penstock.formats.delta.replay import Actions, read_actions
from penstock.formats.delta.schema import Columns, Metadata, check_protocol
from penstock.formats.delta.sources import LogChangedError, load_actions, read_texts
from penstock.model import Place
from penstock.schema import Schema
from penstock.schema.compat import storage_of
from penstock.schema.json import KEY, dump

__all__ = ["DeltaChange", "Mode", "begin"]

LAST_LEGACY_VERSION = 6
"""The last writer version that implies all of its features; the next one lists the features of the table."""
FEATURES = {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping"}
FEATURES |= {"identityColumns", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""The features that a writer must know and this one does; tables that use some of them are refused."""

FIELD_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
ATTEMPTS = 100
Mode = Literal["error", "append", "overwrite"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _LoggedTable:
    """The table as it was when a change was begun."""

    version: int
    actions: Actions
    metadata: Metadata
    columns: Columns


def begin(place: Place, mode: Mode) -> DeltaChange:
    """Return a new change of the Delta table at a place, which need not exist yet.

    Raises:
        ArgumentError: If the mode does not allow it, the storage cannot commit, or the table needs unknown features.
    """
    check_storage(place)
    table = _read_table(place)
    if table is not None:
        if mode == "error":
            raise ArgumentError(
                f'{place.url} is a Delta table already, at version {table.version}; mode="error" expects an empty place. '
                'Use mode="append" to add rows or mode="overwrite" to replace all, or give another path.'
            )
        _check_writable(table, mode, place.url)
    return DeltaChange(place, mode, table)


def _read_table(place: Place) -> _LoggedTable | None:
    """Return the table at a place, or None if there is none."""
    invalidate_cache(place)
    kind = place.filesystem.get_file_info(place.path).type
    if kind == pafs.FileType.File:
        raise ArgumentError(
            f"{place.url} is a file; expected a directory, or a path where nothing exists yet. Give another path."
        )
    log = list_log(place) if _has_log(place) else None
    if log is None or not (log.commits or log.checkpoints or log.compacted):
        selector = pafs.FileSelector(place.path, recursive=False)
        names = [] if kind == pafs.FileType.NotFound else [info.base_name for info in place.filesystem.get_file_info(selector)]
        shown = sorted(name for name in names if not name.startswith((".", "_")))
        # Another writer may have created the log, and then the files, since it was looked for.
        if shown and log is None and not _has_log(place):
            raise ArgumentError(
                f"{place.url} holds files that are not a Delta table: {', '.join(shown[:3])}; expected an empty place or a "
                "Delta table, because a log that lists other files would hide these. Give another path, or remove them first."
            )
        return None
    actions = read_actions(place, log, None)
    check_protocol(actions.protocol, place.url)
    metadata = Metadata.of(actions.metadata, place.url)
    columns = metadata.columns(actions.protocol, place.url)
    return _LoggedTable(version=actions.version, actions=actions, metadata=metadata, columns=columns)


def _has_log(place: Place) -> bool:
    invalidate_cache(place)
    return bool(place.filesystem.get_file_info(f"{place.path}/{LOG}").type == pafs.FileType.Directory)


def _check_writable(table: _LoggedTable, mode: Mode, url: str) -> None:
    """Refuse a table with rules for writers that this one does not keep."""
    protocol, options = table.actions.protocol, table.metadata.configuration
    fields = json.loads(table.metadata.schema_text)["fields"]
    version = protocol.get("minWriterVersion")
    unknown = sorted(set(protocol.get("writerFeatures") or ()) - FEATURES)
    rules = [
        f"{key} of column {field['name']!r}" for field in fields for key in FIELD_RULES if key in (field.get("metadata") or {})
    ]
    rules += [key for key in options if key.startswith("delta.constraints.")]
    if table.columns.names or options.get("delta.columnMapping.mode", "none") != "none":
        rules.append("delta.columnMapping.mode")
    if not isinstance(version, int) or version > LAST_LEGACY_VERSION + 1:
        unknown.append(f"writer version {version!r}")
    if unknown or rules:
        raise ArgumentError(
            f"{url} has rules for writers that Penstock does not support: {', '.join([*unknown, *rules])}; expected a table "
            "without them. Write with software that supports them, or write another table."
        )
    if mode == "overwrite" and options.get("delta.appendOnly", "").lower() == "true":
        raise ArgumentError(
            f'{url} has the property delta.appendOnly, which forbids to remove rows; expected mode="append". Use it, or give '
            "another path."
        )


def _with_stored_schema(table: _LoggedTable, url: str) -> pa.Schema:
    """Return the columns of a table with the `Schema` in their metadata, and the types that it stores."""
    schema = table.columns.schema
    fields = stored_fields(table.metadata.schema_text, schema, url)
    for name, field in fields.items():
        kind = storage_of(field)
        at = schema.get_field_index(name)
        if delta_type(kind, name) == delta_type(schema.field(at).type, name):  # Delta has one type for lists and tensors
            schema = schema.set(at, schema.field(at).with_type(kind))
    return schema.with_metadata({KEY: dump(Schema("", list(fields.values()))).encode()}) if fields else schema


class DeltaChange:
    """A change of a Delta table. See `penstock._engine.commit.change.Change`.

    Attributes:
        id: A unique id. The name of every data file contains it.
        arrow: The columns of the table that is appended to; None for a new table.
        partition_by: The partition columns of that table.
    """

    def __init__(self, place: Place, mode: Mode, table: _LoggedTable | None) -> None:
        """Store the place and the mode; nothing is written yet."""
        self.id = secrets.token_hex(8)
        self._place, self._mode, self._table = place, mode, table
        self._begun = self._ended = False
        self._commit_path = ""
        self._temporary = f"{place.path}/{LOG}/.{self.id}.tmp"
        self._files: dict[str, pq.FileMetaData | None] = {}
        self._columns: tuple[str, tuple[str, ...]] = ("", ())
        self.arrow: pa.Schema | None = None
        self.partition_by: tuple[str, ...] = ()
        if table is not None and mode == "append":
            self.arrow, self.partition_by = _with_stored_schema(table, place.url), table.metadata.partition_columns

    def state(self, arrow: pa.Schema, partition_by: tuple[str, ...]) -> None:
        """Set the columns that are written, or raise `ArgumentError` if Delta cannot store them."""
        for name in partition_by:
            if pa.types.is_timestamp(arrow.field(name).type):
                msg = f"write() got partition_by={name!r}, which is a time; expected numbers, text, booleans or dates. "
                raise ArgumentError(msg + "Choose another field.")
        if self.arrow is None:  # an existing table keeps its names
            check_names(arrow)
        self._columns = (schema_text(arrow), partition_by)

    def _create_log(self) -> None:
        """Create the log before the first data file; without it, readers would take the files for a Parquet table."""
        if not self._begun:
            self._place.filesystem.create_dir(f"{self._place.path}/{LOG}", recursive=True)
            self._begun = True
            check_exclusive_create(self._place, self._temporary)

    def path(self, name: str) -> str:
        """Return where to write a data file; its directory exists."""
        self._create_log()
        self._files[name] = None
        path = f"{self._place.path}/{name}"
        self._place.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        return path

    def written(self, name: str, footer: pq.FileMetaData) -> None:
        """Add a complete data file with its footer."""
        self._files[name] = footer

    def finish(
        self,
        small: Mapping[str, bytes],  # noqa: ARG002 - the log holds what other formats put in small files
        check: Callable[[], None] | None = None,  # noqa: ARG002 - the log shows the changes of other writers
    ) -> None:
        """Commit all files that have rows.

        Raises:
            ArgumentError: If another writer has created a table meanwhile that does not fit appended rows.
            DataChangedError: If another writer has committed meanwhile, and this change cannot follow.
        """
        place, moment = self._place, int(time.time() * 1000)
        files = {name: footer for name, footer in self._files.items() if footer is not None and footer.num_rows}
        for name in self._files.keys() - files.keys():
            delete_if_exists(place, f"{place.path}/{name}")
        adds = [self._add_action(name, footer, moment) for name, footer in files.items()]
        sync_files(place, [f"{place.path}/{name}" for name in files])
        self._create_log()
        version, data = self._encode_commit(adds, moment)
        for _ in range(ATTEMPTS):
            self._commit_path = f"{place.path}/{LOG}/{version:020d}.json"
            if create_exclusive(place, self._commit_path, data, self._temporary) or self._is_committed():
                self._ended = True
                delete_if_exists(place, self._temporary)
                return
            if self._follow_new_table():
                version, data = self._encode_commit(adds, moment)
            else:
                self._check_conflict(version)
                version += 1
        raise DataChangedError(
            f"{place.url} got {ATTEMPTS} other commits while this one was tried; expected fewer writers. Write again later."
        )

    def _encode_commit(self, adds: list[dict[str, Any]], moment: int) -> tuple[int, bytes]:
        """Return the next version, and the contents of its commit file."""
        lines = [self._commit_info(moment), *self._metadata(moment), *self._removes(moment), *({"add": add} for add in adds)]
        data = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode() + b"\n"
        return 0 if self._table is None else self._table.version + 1, data

    def _follow_new_table(self) -> bool:
        """Return whether another writer has created the table that this append was to create; the append then follows it."""
        table = _read_table(self._place) if self._table is None and self._mode == "append" else None
        if table is None:
            return False
        text, partitions = self._columns
        _check_writable(table, self._mode, self._place.url)
        ours = Metadata(schema_text=text, partition_columns=partitions, configuration={})
        check_append(ours, table.metadata, table.actions.protocol, self._place.url)
        self._table = table
        return True

    def _add_action(self, name: str, footer: pq.FileMetaData, moment: int) -> dict[str, Any]:
        path = f"{self._place.path}/{name}"
        values = hive_values(path, self._place.path)
        for key, value in values.items():
            if value == "":
                msg = f"Partition field {key!r} has an empty text, which Delta tables read as a null; expected another value. "
                raise DataError(msg + "Replace it, or partition by another field.")
        size = self._place.filesystem.get_file_info(path).size
        return add_action(name, int(size or 0), footer, {key: values.get(key) for key in self._columns[1]}, moment)

    def _commit_info(self, moment: int) -> dict[str, Any]:
        mode = {"error": "ErrorIfExists"}.get(self._mode, self._mode.capitalize())
        parameters = {"mode": mode, "partitionBy": json.dumps(list(self._columns[1]))}
        is_append = self._mode == "append"
        info = {"timestamp": moment, "operation": "WRITE", "operationParameters": parameters, "isBlindAppend": is_append}
        return {"commitInfo": {**info, "engineInfo": "penstock", "txnId": self.id}}

    def _metadata(self, moment: int) -> list[dict[str, Any]]:
        """Return the actions that set the columns; none if the table has them already."""
        text, partitions = self._columns
        has_ntz = '"timestamp_ntz"' in text
        if self._table is None:
            protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
            if has_ntz:
                protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["timestampNtz"]}
                protocol["writerFeatures"] = ["timestampNtz", "appendOnly", "invariants"]
            metadata = {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": text,
                "partitionColumns": list(partitions),
                "configuration": {},
                "createdTime": moment,
            }
            return [{"protocol": protocol}, {"metaData": metadata}]
        before = self._table.metadata
        if self._mode == "append" or (text, partitions) == (before.schema_text, before.partition_columns):
            return []
        if has_ntz and "timestampNtz" not in (self._table.actions.protocol.get("readerFeatures") or ()):
            raise ArgumentError(
                f"{self._place.url} lacks the feature timestampNtz; expected it for times without a zone. Give them a zone, or "
                "write another table."
            )
        metadata = {key: value for key, value in self._table.actions.metadata.items() if value is not None}
        metadata["format"] = {"provider": "parquet", "options": {}}  # a checkpoint has the options as a list of pairs
        return [{"metaData": {**metadata, "schemaString": text, "partitionColumns": list(partitions)}}]

    def _removes(self, moment: int) -> list[dict[str, Any]]:
        """Return the actions that remove all files of a replaced table."""
        if self._table is None or self._mode != "overwrite":
            return []
        keys = list(self._table.columns.partitions.values())
        removes = []
        for row in self._table.actions.files(self._place, keys).to_pylist():
            remove = {
                "path": row["raw"],
                "deletionTimestamp": moment,
                "dataChange": True,
                "extendedFileMetadata": True,
                "partitionValues": {key: row[f"={key}"] for key in keys},
                "size": row["size"],
            }
            vector = {key: value for key, value in (row["vector"] or {}).items() if value is not None}
            removes.append({"remove": {**remove, **({"deletionVector": vector} if vector else {})}})
        return removes

    def _check_conflict(self, version: int) -> None:
        """Refuse to follow a commit of another writer, unless both append."""
        place = self._place
        (text,) = read_texts(place.filesystem, [f"{place.path}/{LOG}/{version:020d}.json"])
        kinds = {kind for action in load_actions(text, self._commit_path) for kind in action}
        is_append = self._mode == "append" and self._table is not None
        if is_append and not kinds & {"metaData", "protocol"}:
            return
        raise DataChangedError(
            f"Another writer {'changed its columns' if is_append else 'committed'} in version {version} of {place.url} while "
            "this one wrote; expected no such commit, and nothing of this write appears. Look at the table, then write again."
        )

    def _is_committed(self) -> bool:
        """Return whether the commit exists in spite of an error: an interrupt, or a lost answer."""
        try:
            return bool(self._commit_path) and self.id.encode() in read_texts(self._place.filesystem, [self._commit_path])[0]
        except (DataError, LogChangedError):
            return False

    def abort(self) -> None:
        """Remove the files of an uncommitted change."""
        if self._ended or self._is_committed():
            return
        self._ended = True
        place = self._place
        for path in [*(f"{place.path}/{name}" for name in self._files), self._temporary]:
            delete_if_exists(place, path)
        if self._begun and self._table is None:
            for directory in (f"{place.path}/{LOG}", place.path):
                remove_empty_directory(place, directory)
