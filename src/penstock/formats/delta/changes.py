"""Rows that commits of a Delta table have added: inserted rows, and updated rows in their new form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import ArgumentError, DataError
from penstock.formats.delta.deletion_vectors import DeletionVector, deleted_rows
from penstock.formats.delta.log import Log
from penstock.formats.delta.sources import Lines, load_actions, read_texts
from penstock.model import IntArray, Place

__all__ = ["ADDED", "CHANGE", "AddedFiles", "read_added"]

CHANGE = "_change_type"
"""The column of a change data feed with the kind of change."""

ADDED = ("insert", "update_postimage")
"""Its values for added rows."""

REPLACES = ("overwrite", "create or replace table as select", "replace table as select")
GROWS = ("delete", "update", "merge")
"""Operations whose deletion vectors never delete fewer rows than before."""

WRITTEN, COPIED = ("num_added_rows", "numOutputRows"), ("num_copied_rows", "numCopiedRows")
"""The metrics of writers for new rows of a commit, and for rows that it only copied to other files."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AddedFiles:
    """The files with the rows that a range of commits has added.

    Attributes:
        files: The actions on the files, with the columns of the log's sources, in the order of the commits.
        has_feed: Whether some files are of a change data feed, which has the kind of change of each row.
        kept_rows: The added rows of the files that also have older rows.
        versions: The version of each file's commit.
    """

    files: pa.Table
    has_feed: bool
    kept_rows: Mapping[int, IntArray]
    versions: tuple[int, ...]


def read_added(place: Place, log: Log, versions: range, partitions: Sequence[str]) -> AddedFiles:
    """Return the files with the rows that the commits of some versions have added.

    Raises:
        ArgumentError: If a commit no longer exists.
        DataError: If a commit has rewritten files, and does not record the changed rows.
    """
    gone = [version for version in versions if version not in log.commits]
    if gone:
        raise ArgumentError(
            f"{place.url} has no commit {gone[0]} any more: its log was cleaned up, so that the rows that were added since "
            f"version {versions.start - 1} are not known. Give a from_version from {gone[-1]} on, or open the whole table."
        )
    paths = [log.commits[version] for version in versions]
    actions: list[dict[str, Any]] = []
    kept_rows: dict[int, IntArray] = {}
    origins: list[int] = []
    has_feed = False
    for version, path, text in zip(versions, paths, read_texts(place.filesystem, paths), strict=True):
        commit = _CommitActions.of(text, path)
        has_feed = has_feed or bool(commit.feed)
        actions += commit.feed or commit.new_files(place.url, version)
        for action, rows in [] if commit.feed else commit.restored_rows(place, version):
            kept_rows[len(actions)] = rows
            actions.append({key: value for key, value in action.items() if key != "deletionVector"})
        origins += [version] * (len(actions) - len(origins))
    lines = "\n".join(json.dumps({"add": action}) for action in actions).encode()
    source = Lines.of(["the added files"], [lines])
    files = source.actions(place, partitions).drop_columns(["key", "alive"]).combine_chunks()
    return AddedFiles(files=files, has_feed=has_feed, kept_rows=kept_rows, versions=tuple(origins))


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommitActions:
    """The actions of one commit that change data."""

    feed: list[dict[str, Any]]
    adds: list[dict[str, Any]]
    removes: list[dict[str, Any]]
    info: dict[str, Any]

    @classmethod
    def of(cls, text: bytes, path: str) -> _CommitActions:
        actions = load_actions(text, path)
        by_kind = {
            kind: [one[kind] for one in actions if one.get(kind) is not None] for kind in ("cdc", "add", "remove", "commitInfo")
        }
        for kind, of_kind in by_kind.items():
            for action in of_kind:
                if not isinstance(action, dict) or (kind != "commitInfo" and not _names_file(action)):
                    why = f"{kind} is {str(action)[:80]}, and names no file"
                    raise DataError(f"{path}: this commit cannot be read: {why}; expected a complete one. Restore the file.")
        changing = {kind: [one for one in by_kind[kind] if one.get("dataChange", True)] for kind in ("add", "remove")}
        info = by_kind["commitInfo"][0] if by_kind["commitInfo"] else {}
        return cls(feed=by_kind["cdc"], adds=changing["add"], removes=changing["remove"], info=info)

    @property
    def _operation(self) -> str:
        return str(self.info.get("operation", "")).lower()

    def _info_object(self, key: str) -> dict[str, Any]:
        """Return an object of the commit info; empty if it is missing or not an object."""
        value = self.info.get(key)
        return value if isinstance(value, dict) else {}

    def new_files(self, url: str, version: int) -> list[dict[str, Any]]:
        """Return the files whose rows are all new: those that the table did not have before."""
        before = {action["path"] for action in self.removes}
        fresh = [action for action in self.adds if action["path"] not in before]
        again = {action["path"] for action in self.adds}
        operation = self._operation
        if not fresh or before <= again or operation == "delete":
            return [] if operation == "delete" else fresh
        parameters = self._info_object("operationParameters")
        mode = str(parameters.get("mode", "")).strip('"').lower()
        is_replaced = mode in REPLACES or operation in REPLACES
        if is_replaced and (not _has_predicate(parameters.get("predicate")) or self._wrote_all(fresh)):
            return fresh
        advice = "Enable it for the future with delta.enableChangeDataFeed, give"
        raise DataError(
            f"Version {version} of {url} ({self.info.get('operation', 'of an unknown operation')}) has rewritten files without "
            "a record of the changed rows; expected a change data feed. "
            f"{'A RESTORE has none: give' if operation == 'restore' else advice} a from_version from {version} on, or open the "
            "whole table."
        )

    def _wrote_all(self, files: Sequence[dict[str, Any]]) -> bool:
        """Return whether all rows of the files are new, and none was copied from another file."""
        metrics = self._info_object("operationMetrics")
        written, copied = (next((metrics[name] for name in names if name in metrics), -1) for names in (WRITTEN, COPIED))
        try:
            rows = sum(int(json.loads(action["stats"])["numRecords"]) for action in files)
            return int(written) == rows and int(copied) <= 0
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            return False

    def restored_rows(self, place: Place, version: int) -> list[tuple[dict[str, Any], IntArray]]:
        """Return the rows that a deletion vector no longer deletes since this commit, with the action of their file."""
        adds = {action["path"]: action for action in self.adds}
        pairs = [(action, adds[action["path"]]) for action in self.removes if action["path"] in adds]
        before = {
            at: DeletionVector.of(old["deletionVector"]) for at, (old, _) in enumerate(pairs) if old.get("deletionVector")
        }
        after = {at: DeletionVector.of(pairs[at][1]["deletionVector"]) for at in before if pairs[at][1].get("deletionVector")}
        same = {at for at, vector in after.items() if vector == before[at]}
        try:
            deleted_before, deleted_after = (
                deleted_rows({at: vector for at, vector in vectors.items() if at not in same}, place, version)
                for vectors in (before, after)
            )
        except DataError:
            if self._operation in GROWS:  # their old vectors may be gone, and they restore no row
                return []
            raise
        none = np.zeros(0, dtype=np.int64)
        restored = [
            (pairs[at][1], np.setdiff1d(rows, deleted_after.get(at, none), assume_unique=True))
            for at, rows in deleted_before.items()
        ]
        return [(action, rows) for action, rows in restored if len(rows)]


def _names_file(action: Mapping[str, Any]) -> bool:
    """Return whether an action has the path of a file, and a valid deletion vector or none."""
    vector = action.get("deletionVector")
    return isinstance(action.get("path"), str) and (vector is None or DeletionVector.is_description(vector))


def _has_predicate(predicate: Any) -> bool:
    """Return whether an overwrite has a predicate for the rows that it replaces; some writers have an empty list."""
    return str(predicate if predicate is not None else "").strip() not in {"", "[]", '""'}
