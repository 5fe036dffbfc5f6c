"""What commits of a Delta table have added: rows that were inserted, and rows as they became by an update."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import ArgumentError, DataError
from penstock.formats.delta.deletion_vectors import DeletionVector, deletes
from penstock.formats.delta.log import Log
from penstock.formats.delta.sources import Lines, load_actions, read_texts
from penstock.model import IntArray, Place

__all__ = ["ADDED", "CHANGE", "Added", "added"]

CHANGE = "_change_type"
"""The column of a change data feed that tells what became of a row."""

ADDED = ("insert", "update_postimage")
"""What it says of rows that were added."""

REPLACES = ("overwrite", "create or replace table as select", "replace table as select")
GROWS = ("delete", "update", "merge")
"""Operations by which deletion vectors hide more rows than before, and never fewer."""

WRITTEN, COPIED = ("num_added_rows", "numOutputRows"), ("num_copied_rows", "numCopiedRows")
"""What writers call the rows that a commit wrote anew, and those that it only moved to other files."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Added:
    """What a range of commits has added.

    Attributes:
        files: Actions on the files, with the columns of the log's sources, in the order of the commits.
        fed: Whether some are of a change data feed, and tell of each row what became of it.
        only: Of files of which not all rows were added, those that were.
        versions: The version of each file's commit.
    """

    files: pa.Table
    fed: bool
    only: Mapping[int, IntArray]
    versions: tuple[int, ...]


def added(place: Place, log: Log, versions: range, partitions: Sequence[str]) -> Added:
    """Return the files that hold what was added by the commits of some versions.

    Raises:
        ArgumentError: If a commit is not there any more.
        DataError: If a commit has rewritten files, and does not tell which of their rows it changed.
    """
    gone = [version for version in versions if version not in log.commits]
    if gone:
        msg = (
            f"{place.url} has no commit {gone[0]} any more: its log was cleaned up, so that what was added since version "
            f"{versions.start - 1} is not known. Give a from_version from {gone[-1]} on, or open the table whole."
        )
        raise ArgumentError(msg)
    paths = [log.commits[version] for version in versions]
    kept: list[dict[str, Any]] = []
    only: dict[int, IntArray] = {}
    origins: list[int] = []
    fed = False
    for version, path, text in zip(versions, paths, read_texts(place.filesystem, paths), strict=True):
        commit = _Commit.of(text, path)
        fed = fed or bool(commit.feed)
        kept += commit.feed or commit.new_files(place.url, version)
        for action, rows in [] if commit.feed else commit.brought_back(place, version):
            only[len(kept)] = rows
            kept.append({key: value for key, value in action.items() if key != "deletionVector"})
        origins += [version] * (len(kept) - len(origins))
    lines = "\n".join(json.dumps({"add": action}) for action in kept).encode()
    source = Lines.of(["what was added"], [lines])
    files = source.actions(place, partitions).drop_columns(["key", "alive"]).combine_chunks()
    return Added(files=files, fed=fed, only=only, versions=tuple(origins))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """The actions of one commit on files that change data."""

    feed: list[dict[str, Any]]
    adds: list[dict[str, Any]]
    removes: list[dict[str, Any]]
    info: dict[str, Any]

    @classmethod
    def of(cls, text: bytes, path: str) -> _Commit:
        actions = load_actions(text, path)
        found = {
            kind: [one[kind] for one in actions if one.get(kind) is not None] for kind in ("cdc", "add", "remove", "commitInfo")
        }
        for kind, some in found.items():
            for action in some:
                if not isinstance(action, dict) or (kind != "commitInfo" and not _names_file(action)):
                    what = f"{kind} is {str(action)[:80]}, and names no file"
                    msg = f"{path}: this commit cannot be read: {what}. A whole one was expected. Restore the file."
                    raise DataError(msg)
        changing = {kind: [one for one in found[kind] if one.get("dataChange", True)] for kind in ("add", "remove")}
        info = found["commitInfo"][0] if found["commitInfo"] else {}
        return cls(feed=found["cdc"], adds=changing["add"], removes=changing["remove"], info=info)

    @property
    def _operation(self) -> str:
        return str(self.info.get("operation", "")).lower()

    def _told(self, what: str) -> dict[str, Any]:
        """Return what the commit says of itself under a name; nothing where that is no object."""
        found = self.info.get(what)
        return found if isinstance(found, dict) else {}

    def new_files(self, url: str, version: int) -> list[dict[str, Any]]:
        """Return the files whose rows are all new, which are none of those that were there and are added again."""
        before = {action["path"] for action in self.removes}
        fresh = [action for action in self.adds if action["path"] not in before]
        again = {action["path"] for action in self.adds}
        operation = self._operation
        if not fresh or before <= again or operation == "delete":
            return [] if operation == "delete" else fresh
        told = self._told("operationParameters")
        mode = str(told.get("mode", "")).strip('"').lower()
        if (mode in REPLACES or operation in REPLACES) and (not _says(told.get("predicate")) or self._wrote_all(fresh)):
            return fresh
        enable = "Enable it for the future with delta.enableChangeDataFeed, give"
        msg = (
            f"Version {version} of {url} ({self.info.get('operation', 'of an unknown operation')}) has rewritten files, and "
            "does not tell which of their rows it changed. A change data feed was expected. "
            f"{'A RESTORE has none: give' if operation == 'restore' else enable} a from_version from {version} on, or open the "
            "table whole."
        )
        raise DataError(msg)

    def _wrote_all(self, files: Sequence[dict[str, Any]]) -> bool:
        """Return whether all rows of some files were written anew; else some were only moved, and lie among them."""
        metrics = self._told("operationMetrics")
        written, copied = (next((metrics[name] for name in names if name in metrics), -1) for names in (WRITTEN, COPIED))
        try:
            rows = sum(int(json.loads(action["stats"])["numRecords"]) for action in files)
            return int(written) == rows and int(copied) <= 0
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            return False

    def brought_back(self, place: Place, version: int) -> list[tuple[dict[str, Any], IntArray]]:
        """Return files of which rows are there again that a deletion vector has hidden before, and these rows."""
        adds = {action["path"]: action for action in self.adds}
        pairs = [(action, adds[action["path"]]) for action in self.removes if action["path"] in adds]
        before = {
            at: DeletionVector.of(old["deletionVector"]) for at, (old, _) in enumerate(pairs) if old.get("deletionVector")
        }
        after = {at: DeletionVector.of(pairs[at][1]["deletionVector"]) for at in before if pairs[at][1].get("deletionVector")}
        same = {at for at, vector in after.items() if vector == before[at]}
        try:
            hidden, hides = (
                deletes({at: vector for at, vector in vectors.items() if at not in same}, place, version)
                for vectors in (before, after)
            )
        except DataError:
            if self._operation in GROWS:  # old vectors may be gone, and none of these brings a row back
                return []
            raise
        nothing = np.zeros(0, dtype=np.int64)
        found = [(pairs[at][1], np.setdiff1d(rows, hides.get(at, nothing), assume_unique=True)) for at, rows in hidden.items()]
        return [(action, rows) for action, rows in found if len(rows)]


def _names_file(action: Mapping[str, Any]) -> bool:
    """Return whether an action has the path of a file, and a deletion vector or none."""
    vector = action.get("deletionVector")
    return isinstance(action.get("path"), str) and (vector is None or DeletionVector.is_told(vector))


def _says(predicate: Any) -> bool:
    """Return whether an overwrite was told which rows it replaces; some writers have a list of none."""
    return str(predicate if predicate is not None else "").strip() not in {"", "[]", '""'}
