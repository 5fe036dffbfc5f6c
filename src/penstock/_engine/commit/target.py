"""What lies where a table is to be changed, and whether the change may be made there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from pyarrow import fs as pafs

from penstock._engine.commit.log import FOLDER, fresh_listing, relative, visible
from penstock._engine.storage.filesystem import ENDINGS, is_hidden
from penstock.errors import ArgumentError, listed
from penstock.model import Place

__all__ = ["Mode", "check_mode", "check_name", "check_small", "check_target", "goes", "hidden"]

Mode: TypeAlias = Literal["error", "append", "overwrite"]
"""What becomes of a table that lies there: the change is refused, added to it, or takes its place."""

SPARK = re.compile(r"part-(?:[rm]-)?\d{5}[\da-f-]*(?:c\d{3})?")
"""Names that Spark gave to data files before it gave them endings."""

OF_A_TABLE = re.compile(rf"_SUCCESS|_metadata|_common_metadata|_temporary|{FOLDER}|_(?:started|committed)_.*|\..*\.crc")
"""Hidden names that tell of a table's data, and so go with it. Others are not ours to delete."""

LOGS = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table", "_spark_metadata": "the output of a Spark stream"}
"""What has a log that says which files belong to it, of which a file that we put there would know nothing."""


def check_mode(mode: str) -> None:
    """Refuse what is no mode.

    Raises:
        ArgumentError: If it is none.
    """
    if mode not in get_args(Mode):
        raise ArgumentError(f'mode={mode!r} is not known. "error", "append" and "overwrite" are. Give one of them.')


def hidden(name: str) -> bool:
    """Return whether readers of tables pass over a relative name, as Spark does.

    Example:
        >>> hidden("_delta_log/0.json"), hidden("_day=mon/a.parquet")
        (True, False)
    """
    return _hidden_part(name) is not None


def _hidden_part(name: str) -> str | None:
    return next(filter(is_hidden, name.split("/")), None)


def goes(name: str) -> bool:
    """Return whether an overwrite removes a file: data, and what tells of it. Other hidden files stay.

    Example:
        >>> goes("day=mon/a.parquet"), goes("_common_metadata"), goes(".git/config")
        (True, True, False)
    """
    part = _hidden_part(name)
    return part is None or OF_A_TABLE.fullmatch(part) is not None


def check_target(place: Place, mode: Mode) -> list[pafs.FileInfo]:
    """Return the files that a table consists of before a change, hidden ones too.

    Raises:
        ArgumentError: If the change may not be made there.
        DataError: If a marker cannot be read.
    """
    if place.filesystem.get_file_info(place.path).type == pafs.FileType.File:
        msg = f"A file lies at {place.url}, and a table is a directory. Give the path of a directory, or of none yet."
        raise ArgumentError(msg)
    infos = visible(place.filesystem, place.path, fresh_listing(place))
    _check([relative(info.path, place.path) for info in infos], mode, place.url)
    return infos


def _check(names: Iterable[str], mode: Mode, url: str) -> None:
    """Refuse a change of what lies there."""
    every = sorted(names)
    for name in every:
        kind = LOGS.get(name.split("/")[0])
        if kind is not None:
            how = 'format="delta"' if name.startswith("_delta_log") else "what writes such logs"
            msg = (
                f"{url} is {kind}: {name} lies there. Its log says which files belong to it, and files beside the log do not. "
                f"Write with {how}, or give another path."
            )
            raise ArgumentError(msg)
    shown = [name for name in every if not hidden(name)]
    if mode == "error" and shown:
        msg = (
            f'{url} holds data already: {listed(shown, 3)}. mode="error" writes only where nothing is. '
            'Give mode="append" to add rows or mode="overwrite" to replace all, or give another path.'
        )
        raise ArgumentError(msg)
    others = [name for name in shown if not name.lower().endswith(ENDINGS) and not SPARK.fullmatch(name.rpartition("/")[2])]
    if mode == "overwrite" and others:
        msg = (
            f'{url} holds files that are no Parquet: {listed(others, 3)}. mode="overwrite" replaces directories '
            "of Parquet files only. Check the path; if it is right, remove those files first."
        )
        raise ArgumentError(msg)


def check_name(name: str, change: str) -> None:
    """Refuse a name that a data file of a change cannot have.

    Raises:
        ArgumentError: If it leads out of the table, is hidden, or does not tell the change.

    Example:
        >>> check_name("day=mon/part-00000-0123456789ab.parquet", "0123456789ab")
    """
    _check_inside(name)
    if hidden(name) or change not in name.rpartition("/")[2]:
        msg = (
            f"A data file cannot be called {name!r}. A name was expected that readers do not pass over and that holds the id "
            f"of its change. Give one like part-00000-{change}.parquet."
        )
        raise ArgumentError(msg)


def check_small(name: str) -> None:
    """Refuse a name that a small file beside the data cannot have.

    Raises:
        ArgumentError: If it leads out of the table, or would be read as data.

    Example:
        >>> check_small("_common_metadata")
    """
    _check_inside(name)
    if not hidden(name) or "/" in name or name == FOLDER:
        msg = f"A small file cannot be called {name!r}. A name that begins with _ was expected. Give one like _common_metadata."
        raise ArgumentError(msg)


def _check_inside(name: str) -> None:
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        msg = f"{name!r} does not name a file inside a table. A relative name without .. was expected. Give one."
        raise ArgumentError(msg)
