"""Checks of the place where a table is changed, and of the names of its files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from pyarrow import fs as pafs

from penstock._engine.commit.log import FOLDER, fresh_listing, relative, visible
from penstock._engine.storage.filesystem import ENDINGS, is_hidden
from penstock.errors import ArgumentError, listed
from penstock.model import Place

Mode: TypeAlias = Literal["error", "append", "overwrite"]
"""What happens to an existing table: an error, more rows, or a replacement."""

SPARK = re.compile(r"part-(?:[rm]-)?\d{5}[\da-f-]*(?:c\d{3})?")
"""Names that old versions of Spark gave to data files, without an ending."""

TABLE_METADATA = re.compile(rf"_SUCCESS|_metadata|_common_metadata|_temporary|{FOLDER}|_(?:started|committed)_.*|\..*\.crc")
"""Hidden names that describe a table's data, so that an overwrite removes them too. Other hidden files stay."""

LOGS = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table", "_spark_metadata": "the output of a Spark stream"}
"""Logs that list the files of their table; files that we add beside them would not count."""


def check_mode(mode: str) -> None:
    """Refuse an unknown mode."""
    if mode not in get_args(Mode):
        raise ArgumentError(f'mode={mode!r} is not known; expected "error", "append" or "overwrite". Give one of them.')


def hidden(name: str) -> bool:
    """Return whether readers of tables skip a relative name, as Spark does."""
    return _hidden_part(name) is not None


def _hidden_part(name: str) -> str | None:
    return next(filter(is_hidden, name.split("/")), None)


def is_overwritten(name: str) -> bool:
    """Return whether an overwrite removes a file: data and its metadata, but no other hidden files.

    Example:
        >>> is_overwritten("day=mon/a.parquet"), is_overwritten("_common_metadata"), is_overwritten(".git/config")
        (True, True, False)
    """
    part = _hidden_part(name)
    return part is None or TABLE_METADATA.fullmatch(part) is not None


def check_target(place: Place, mode: Mode) -> list[pafs.FileInfo]:
    """Return the files of a table before a change, also hidden ones."""
    if place.filesystem.get_file_info(place.path).type == pafs.FileType.File:
        raise ArgumentError(
            f"{place.url} is a file; expected a directory, or a path where nothing exists yet. Give another path."
        )
    infos = visible(place.filesystem, place.path, fresh_listing(place))
    _check_files([relative(info.path, place.path) for info in infos], mode, place.url)
    return infos


def _check_files(names: Iterable[str], mode: Mode, url: str) -> None:
    """Refuse a change of a directory that holds these files."""
    names = sorted(names)
    for name in names:
        kind = LOGS.get(name.split("/")[0])
        if kind is not None:
            advice = 'format="delta"' if name.startswith("_delta_log") else "software that writes such logs"
            raise ArgumentError(
                f"{url} is {kind}: it holds {name}. Its log lists the files of the table, so that files beside the log would "
                f"not count. Write with {advice}, or give another path."
            )
    shown = [name for name in names if not hidden(name)]
    if mode == "error" and shown:
        raise ArgumentError(
            f'{url} holds data already: {listed(shown, 3)}; mode="error" expects an empty place. '
            'Use mode="append" to add rows or mode="overwrite" to replace all, or give another path.'
        )
    others = [name for name in shown if not name.lower().endswith(ENDINGS) and not SPARK.fullmatch(name.rpartition("/")[2])]
    if mode == "overwrite" and others:
        raise ArgumentError(
            f'{url} holds files that are not Parquet: {listed(others, 3)}; mode="overwrite" replaces directories '
            "of Parquet files only. Check the path; if it is right, remove those files first."
        )


def check_name(name: str, change: str) -> None:
    """Refuse a data file name that leads out of the table, is hidden, or does not contain the id of the change."""
    _check_inside(name)
    if hidden(name) or change not in name.rpartition("/")[2]:
        raise ArgumentError(
            f"A data file cannot be called {name!r}; expected a name that is not hidden and contains the id of its change. "
            f"Use one like part-00000-{change}.parquet."
        )


def check_small(name: str) -> None:
    """Refuse a name of a small file that leads out of the table, or would be read as data."""
    _check_inside(name)
    if not hidden(name) or "/" in name or name == FOLDER:
        msg = f"A small file cannot be called {name!r}; expected a name that begins with _. Use one like _common_metadata."
        raise ArgumentError(msg)


def _check_inside(name: str) -> None:
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ArgumentError(f"{name!r} does not name a file inside a table; expected a relative name without .. parts.")
