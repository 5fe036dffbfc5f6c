"""A change of a Delta table: data files are written beside the others, and one commit makes all of them count.

Files that no commit names belong to no table, so that a writer that dies leaves nothing that a reader sees.
"""

from __future__ import annotations

import json
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock.errors import ArgumentError, DataChangedError, DataError
from penstock.formats._hive import hive_values
from penstock.formats.delta.append import check_fits
from penstock.formats.delta.commit import check_puts, drop_claim, drop_folder, forget, prove_puts, put_if_absent, sync_files
from penstock.formats.delta.encode_actions import add_action, check_names, delta_type, schema_text, told_fields
from penstock.formats.delta.log import LOG, list_log
from penstock.formats.delta.replay import Actions, read_actions
from penstock.formats.delta.schema import Columns, Metadata, check_protocol
from penstock.formats.delta.sources import LogChangedError, load_actions, read_texts
from penstock.model import Place
from penstock.schema import Schema
from penstock.schema.compat import storage_of
from penstock.schema.json import KEY, dump

__all__ = ["DeltaChange", "Mode", "begin"]

LEGACY = 6
"""The last of the writer versions that need all that they have; one that follows names what it needs."""
FEATURES = {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping"}
FEATURES |= {"identityColumns", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""What a writer must know, and this one does: some of it by refusing tables that use it."""

PER_FIELD = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
ATTEMPTS = 100
Mode = Literal["error", "append", "overwrite"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Found:
    """The table that was there when a change was begun."""

    version: int
    actions: Actions
    metadata: Metadata
    columns: Columns


def begin(place: Place, mode: Mode) -> DeltaChange:
    """Return a change of the Delta table at a place, which need not be there yet.

    Raises:
        ArgumentError: If the mode does not allow it, the storage cannot, or the table needs what is not known here.
    """
    check_puts(place)
    found = _found(place)
    if found is not None:
        if mode == "error":
            msg = (
                f'{place.url} is a Delta table already, at version {found.version}. mode="error" writes only where nothing is. '
            )
            raise ArgumentError(
                msg + 'Give mode="append" to add rows or mode="overwrite" to replace all, or give another path.'
            )
        _check_writable(found, mode, place.url)
    return DeltaChange(place, mode, found)


def _found(place: Place) -> _Found | None:
    """Return the table that is there; None where there is none yet."""
    forget(place)
    kind = place.filesystem.get_file_info(place.path).type
    if kind == pafs.FileType.File:
        msg = f"A file lies at {place.url}, and a table is a directory. Give the path of a directory, or of none yet."
        raise ArgumentError(msg)
    log = list_log(place) if _logged(place) else None
    if log is None or not (log.commits or log.checkpoints or log.compacted):
        selector = pafs.FileSelector(place.path, recursive=False)
        names = [] if kind == pafs.FileType.NotFound else [info.base_name for info in place.filesystem.get_file_info(selector)]
        shown = sorted(name for name in names if not name.startswith((".", "_")))
        if shown and log is None and not _logged(place):  # a log comes before the first file, and both may have come since
            msg = (
                f"{place.url} holds files that are no Delta table: {', '.join(shown[:3])}. An empty place, or a Delta table, "
                "was expected: a log that names other files would hide these. Give another path, or remove them first."
            )
            raise ArgumentError(msg)
        return None
    actions = read_actions(place, log, None)
    check_protocol(actions.protocol, place.url)
    metadata = Metadata.of(actions.metadata, place.url)
    columns = metadata.columns(actions.protocol, place.url)
    return _Found(version=actions.version, actions=actions, metadata=metadata, columns=columns)


def _logged(place: Place) -> bool:
    forget(place)
    return bool(place.filesystem.get_file_info(f"{place.path}/{LOG}").type == pafs.FileType.Directory)


def _check_writable(found: _Found, mode: Mode, url: str) -> None:
    """Refuse a table whose rules for writers are not kept here."""
    told, options = found.actions.protocol, found.metadata.configuration
    fields = json.loads(found.metadata.schema_text)["fields"]
    version = told.get("minWriterVersion")
    unknown = sorted(set(told.get("writerFeatures") or ()) - FEATURES)
    ruled = [
        f"{key} of column {field['name']!r}" for field in fields for key in PER_FIELD if key in (field.get("metadata") or {})
    ]
    ruled += [key for key in options if key.startswith("delta.constraints.")]
    if found.columns.names or options.get("delta.columnMapping.mode", "none") != "none":
        ruled.append("delta.columnMapping.mode")
    if not isinstance(version, int) or version > LEGACY + 1:
        unknown.append(f"writer version {version!r}")
    if unknown or ruled:
        msg = (
            f"{url} has rules for writers that are not kept here: {', '.join([*unknown, *ruled])}. A plain table was expected. "
        )
        raise ArgumentError(msg + "Write with software that keeps them, or write another table.")
    if mode == "overwrite" and options.get("delta.appendOnly", "").lower() == "true":
        msg = f'{url} says delta.appendOnly: no row may be removed. mode="append" was expected. Give it, or another path.'
        raise ArgumentError(msg)


def _with_fields(found: _Found, url: str) -> pa.Schema:
    """Return the columns of a table, with the schema of ours that they state."""
    schema = found.columns.schema
    ours = told_fields(found.metadata.schema_text, schema, url)
    for name, field in ours.items():
        kind = storage_of(field)
        at = schema.get_field_index(name)
        if delta_type(kind, name) == delta_type(schema.field(at).type, name):  # Delta's types say less: tensors are lists there
            schema = schema.set(at, schema.field(at).with_type(kind))
    return schema.with_metadata({KEY: dump(Schema("", list(ours.values()))).encode()}) if ours else schema


class DeltaChange:
    """A change of a Delta table that was begun. `penstock._engine.commit.change.Change` says how it is used.

    Attributes:
        id: Its name, unique. The name of every data file holds it.
        arrow: The columns of the table that is appended to; None of a new one.
        partition_by: The columns by which that is partitioned.
    """

    def __init__(self, place: Place, mode: Mode, found: _Found | None) -> None:
        """Store what is changed and how; nothing is written yet."""
        self.id = secrets.token_hex(8)
        self._place, self._mode, self._found = place, mode, found
        self._begun = self._ended = False
        self._tried = ""
        self._files: dict[str, pq.FileMetaData | None] = {}
        self._columns: tuple[str, tuple[str, ...]] = ("", ())
        self.arrow: pa.Schema | None = None
        self.partition_by: tuple[str, ...] = ()
        if found is not None and mode == "append":
            self.arrow, self.partition_by = _with_fields(found, place.url), found.metadata.partition_columns

    def state(self, arrow: pa.Schema, partition_by: tuple[str, ...]) -> None:
        """Take the columns that are written.

        Raises:
            ArgumentError: If Delta has no type for one, does not tell two apart, or cannot be partitioned by one.
        """
        for name in partition_by:
            if pa.types.is_timestamp(arrow.field(name).type):
                msg = f"write got partition_by={name!r}, which is a time. Numbers, text, booleans or dates were expected. "
                raise ArgumentError(msg + "Choose another field.")
        if self.arrow is None:  # a table that is there keeps its names
            check_names(arrow)
        self._columns = (schema_text(arrow), partition_by)

    @property
    def _spare(self) -> str:
        """A file in the log that is nobody else's."""
        return f"{self._place.path}/{LOG}/.{self.id}.tmp"

    def _claim(self) -> None:
        """Let the log be there before the first file: without it, files would be taken for a table of Parquet."""
        if not self._begun:
            self._place.filesystem.create_dir(f"{self._place.path}/{LOG}", recursive=True)
            self._begun = True
            prove_puts(self._place, self._spare)

    def path(self, name: str) -> str:
        """Return where a data file is written; its directory is there."""
        self._claim()
        self._files[name] = None
        path = f"{self._place.path}/{name}"
        self._place.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        return path

    def written(self, name: str, footer: pq.FileMetaData) -> None:
        """Take the footer of a file that is complete."""
        self._files[name] = footer

    def finish(
        self,
        small: Mapping[str, bytes],  # noqa: ARG002 - a log holds what others put in small files
        check: Callable[[], None] | None = None,  # noqa: ARG002 - and tells what others have changed
    ) -> None:
        """Commit all files that hold rows.

        Raises:
            ArgumentError: If another writer has made a table meanwhile that rows to append are none of.
            DataChangedError: If another writer was first, in a way that does not go together with this.
        """
        place, moment = self._place, int(time.time() * 1000)
        kept = {name: footer for name, footer in self._files.items() if footer is not None and footer.num_rows}
        for name in self._files.keys() - kept.keys():
            with suppress(OSError):
                place.filesystem.delete_file(f"{place.path}/{name}")
        added = [self._added(name, footer, moment) for name, footer in kept.items()]
        sync_files(place, [f"{place.path}/{name}" for name in kept])
        self._claim()
        version, data = self._commit(added, moment)
        for _ in range(ATTEMPTS):
            self._tried = f"{place.path}/{LOG}/{version:020d}.json"
            if put_if_absent(place, self._tried, data, self._spare) or self._is_made():
                self._ended = True
                drop_claim(place, self._spare)
                return
            if self._is_beaten():
                version, data = self._commit(added, moment)
            else:
                self._check_conflict(version)
                version += 1
        msg = (
            f"{place.url} got {ATTEMPTS} other commits while this one was made. Fewer writers were expected. Write again later."
        )
        raise DataChangedError(msg)

    def _commit(self, added: list[dict[str, Any]], moment: int) -> tuple[int, bytes]:
        """Return the version that comes next, and what is put there."""
        lines = [self._info(moment), *self._metadata(moment), *self._removed(moment), *({"add": one} for one in added)]
        data = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode() + b"\n"
        return 0 if self._found is None else self._found.version + 1, data

    def _is_beaten(self) -> bool:
        """Return whether another writer has made the table that this append was to make; it goes on as one to that.

        Raises:
            ArgumentError: If the rows are none of that table.
        """
        found = _found(self._place) if self._found is None and self._mode == "append" else None
        if found is None:
            return False
        text, partitions = self._columns
        _check_writable(found, self._mode, self._place.url)
        ours = Metadata(schema_text=text, partition_columns=partitions, configuration={})
        check_fits(ours, found.metadata, found.actions.protocol, self._place.url)
        self._found = found
        return True

    def _added(self, name: str, footer: pq.FileMetaData, moment: int) -> dict[str, Any]:
        place = self._place
        values = hive_values(f"{place.path}/{name}", place.path)
        for key, value in values.items():
            if value == "":
                msg = f"Partition field {key!r} has an empty text, which a Delta table takes for a null. Another value was "
                raise DataError(msg + "expected. Replace it, or partition by another field.")
        size = place.filesystem.get_file_info(f"{place.path}/{name}").size
        return add_action(name, int(size or 0), footer, {key: values.get(key) for key in self._columns[1]}, moment)

    def _info(self, moment: int) -> dict[str, Any]:
        """Return what the log says of the commit itself."""
        told = {"mode": {"error": "ErrorIfExists"}.get(self._mode, self._mode.capitalize())}
        told["partitionBy"] = json.dumps(list(self._columns[1]))
        blind = self._mode == "append"
        info = {"timestamp": moment, "operation": "WRITE", "operationParameters": told, "isBlindAppend": blind}
        return {"commitInfo": {**info, "engineInfo": "penstock", "txnId": self.id}}

    def _metadata(self, moment: int) -> list[dict[str, Any]]:
        """Return the actions that state the columns, where they are not stated already."""
        text, partitions = self._columns
        new_types = '"timestamp_ntz"' in text
        if self._found is None:
            plain = {"minReaderVersion": 1, "minWriterVersion": 2}
            named: dict[str, Any] = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["timestampNtz"]}
            named["writerFeatures"] = ["timestampNtz", "appendOnly", "invariants"]
            told: dict[str, Any] = {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": text,
            }
            told |= {"partitionColumns": list(partitions), "configuration": {}, "createdTime": moment}
            return [{"protocol": named if new_types else plain}, {"metaData": told}]
        if self._mode == "append" or (text, partitions) == (
            self._found.metadata.schema_text,
            self._found.metadata.partition_columns,
        ):
            return []
        if new_types and "timestampNtz" not in (self._found.actions.protocol.get("readerFeatures") or ()):
            msg = f"{self._place.url} has no feature timestampNtz, which times without a zone need. Give them a zone, or write "
            raise ArgumentError(msg + "another table.")
        before = {key: value for key, value in self._found.actions.metadata.items() if value is not None}
        before["format"] = {"provider": "parquet", "options": {}}  # a checkpoint has the options as a list of pairs
        return [{"metaData": {**before, "schemaString": text, "partitionColumns": list(partitions)}}]

    def _removed(self, moment: int) -> list[dict[str, Any]]:
        """Return the actions that remove all files, where the table is replaced."""
        if self._found is None or self._mode != "overwrite":
            return []
        keys = list(self._found.columns.partitions.values())
        found = []
        for row in self._found.actions.files(self._place, keys).to_pylist():
            told = {"path": row["raw"], "deletionTimestamp": moment, "dataChange": True, "extendedFileMetadata": True}
            told |= {"partitionValues": {key: row[f"={key}"] for key in keys}, "size": row["size"]}
            vector = {key: value for key, value in (row["vector"] or {}).items() if value is not None}
            found.append({"remove": {**told, **({"deletionVector": vector} if vector else {})}})
        return found

    def _check_conflict(self, version: int) -> None:
        """Refuse to go on after a commit of another writer that this one cannot follow."""
        place = self._place
        (text,) = read_texts(place.filesystem, [f"{place.path}/{LOG}/{version:020d}.json"])
        kinds = {kind for action in load_actions(text, self._tried) for kind in action}
        if self._mode == "append" and self._found is not None and not kinds & {"metaData", "protocol"}:
            return
        what = "changed its columns" if self._mode == "append" and self._found is not None else "committed"
        msg = (
            f"Another writer {what} in version {version} of {place.url} while this one wrote. No such commit was expected, and "
            "nothing of this write appears. Look at the table, then write again."
        )
        raise DataChangedError(msg)

    def _is_made(self) -> bool:
        """Return whether the commit is there, though something went wrong: an interrupt, or an answer that was lost."""
        try:
            return bool(self._tried) and self.id.encode() in read_texts(self._place.filesystem, [self._tried])[0]
        except (DataError, LogChangedError):
            return False

    def abort(self) -> None:
        """Remove the files of a change that was not made."""
        if self._ended or self._is_made():
            return
        self._ended = True
        filesystem, path = self._place.filesystem, self._place.path
        for name in self._files:
            with suppress(OSError):
                filesystem.delete_file(f"{path}/{name}")
        drop_claim(self._place, self._spare)
        if self._begun and self._found is None:
            for folder in (f"{path}/{LOG}", path):
                drop_folder(self._place, folder)
