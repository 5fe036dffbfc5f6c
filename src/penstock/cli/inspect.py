"""`penstock inspect`: the facts about a table, its columns and first rows, and warnings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._engine.storage.filesystem import locate
from penstock._open import open as open_table
from penstock._open import recognised
from penstock.cli._advice import advice
from penstock.cli._cells import first_rows, in_json, in_words
from penstock.cli._facts import ColumnFacts, TableFacts, first_files, table_facts
from penstock.cli._tables import counted, format_bytes, grouped, line_width, say, show, visible
from penstock.codecs import Unknown
from penstock.schema import Codec

__all__ = ["add", "run"]

MAX_TYPE, MAX_URL = 40, 400
"""The limits on the characters of a type and of a URL."""


def add(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command and its options."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inspect",
        help="show a table: files, row groups, columns, first rows, and warnings",
        description="Shows a table: its format, files, row groups, columns and first rows, and warnings.",
    )
    parser.add_argument("url", metavar="URL", nargs="+", help="a path, a URL, either with wildcards, or several files")
    parser.add_argument("--rows", type=_count, default=5, help="first rows to show (default: %(default)s)")
    parser.add_argument("--files", type=_positive, default=50, help="files whose footers are read (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--version", dest="at_version", metavar="VERSION", help="which of the table's versions, where it has them"
    )
    parser.add_argument(
        "--storage-option",
        dest="storage",
        metavar="KEY=VALUE",
        type=_pair,
        action="append",
        default=[],
        help="an option of fsspec for the URL; can be given several times; a value is JSON, or text if it is not valid JSON",
    )
    return parser


def _count(text: str, minimum: int = 0) -> int:
    try:
        count = int(text)
    except ValueError:
        count = -1
    if count < minimum:
        msg = f"{text!r} is not a whole number from {minimum} on"
        raise argparse.ArgumentTypeError(msg)
    return count


def _positive(text: str) -> int:
    return _count(text, 1)


def _pair(text: str) -> tuple[str, Any]:
    """Return the key and the value of a storage option."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        msg = f"{text!r} is not of the form key=value"
        raise argparse.ArgumentTypeError(msg)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def run(options: argparse.Namespace) -> int:
    """Print the facts about a table.

    Raises:
        PenstockError: If it cannot be opened, or its footers cannot be read.
    """
    storage = dict(options.storage)
    source = options.url[0] if len(options.url) == 1 else options.url
    format_ = recognised(locate(source, options=storage))
    ds = open_table(source, version=options.at_version, storage_options=storage, format=format_)
    facts = table_facts(ds, max(1, options.files))
    rows = first_rows(first_files(ds, max(1, options.files)), options.rows)
    if options.json:
        say(json.dumps(facts_in_json(facts, format_.name, rows), allow_nan=False))
    else:
        _print(facts, format_.name, rows)
    return 0


def facts_in_json(facts: TableFacts, format_name: str, rows: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the facts as a JSON value."""
    count = max(map(len, rows.values()), default=0)
    return {
        "url": facts.url,
        "format": format_name,
        "version": facts.version or None,
        "files": facts.files,
        "files_read": facts.files_read,
        "bytes": facts.bytes,
        "rows": facts.rows,
        "rows_deleted": facts.rows_deleted,
        "row_groups": {"count": len(facts.group_rows), "rows": _spread(facts.group_rows), "bytes": _spread(facts.group_bytes)},
        "columns": [_column_in_json(column) for column in facts.columns],
        "partitions": [
            {"name": one.name, "arrow_type": one.arrow_type, "values": one.values, "first": list(one.first)}
            for one in facts.partitions
        ],
        "first_rows": [{name: in_json(cells[at]) for name, cells in rows.items()} for at in range(count)],
        "warnings": advice(facts),
    }


def _spread(values: npt.NDArray[np.int64]) -> dict[str, float] | None:
    if not len(values):
        return None
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def _column_in_json(column: ColumnFacts) -> dict[str, Any]:
    codec = column.codec
    return {
        "name": column.name,
        "arrow_type": column.arrow_type,
        "dtype": column.dtype,
        "shape": list(column.shape),
        "codec": None if codec is None else {"name": _codec_name(codec), **_codec_options(codec)},
        "nullable": column.nullable,
        "partition": column.partition,
        "bytes": column.bytes,
        "plain_bytes": column.plain_bytes,
        "compression": list(column.compression),
        "nulls": column.nulls,
        "min": in_json(column.low),
        "max": in_json(column.high),
        "statistics": column.bounded,
        "page_index": column.page_index,
    }


def _print(facts: TableFacts, format_name: str, rows: Mapping[str, Sequence[Any]]) -> None:
    version = f", version {facts.version}" if facts.version else ""
    some = "" if facts.files_read == facts.files else f" (of {grouped(facts.files_read)} of {grouped(facts.files)} files)"
    url = visible(facts.url)
    deleted = f", less {grouped(facts.rows_deleted)} deleted" if facts.rows_deleted else ""
    say(f"table       {_cut(url, MAX_URL)}")
    say(f"format      {format_name}{version}")
    say(f"files       {grouped(facts.files)}, {format_bytes(facts.bytes)}")
    say(f"rows        {grouped(facts.rows)}{deleted}{some}")
    say(f"row groups  {grouped(len(facts.group_rows))}{some}{_spread_in_words(facts)}")
    for one in facts.partitions:
        first = ", ".join(in_words(value) for value in one.first) + (", ..." if one.values > len(one.first) else "")
        say(f"partition   {visible(one.name)} ({one.arrow_type}), {grouped(one.values)} values: {first}")
    if some:
        say(f"            the other files were not looked at; --files {facts.files} looks at all")
    say()
    _print_columns(facts.columns)
    _print_rows({visible(name): [in_words(cell) for cell in cells] for name, cells in rows.items()})
    for warning in advice(facts):
        say()
        say(f"warning: {visible(warning)}")


def _spread_in_words(facts: TableFacts) -> str:
    if not len(facts.group_rows):
        return ""
    rows, sizes = facts.group_rows, facts.group_bytes
    return (
        f"; rows: {grouped(rows.min())} least, {grouped(float(np.median(rows)))} median, {grouped(rows.max())} most; "
        f"bytes: {format_bytes(sizes.min())}, {format_bytes(float(np.median(sizes)))}, {format_bytes(sizes.max())}"
    )


def _print_columns(columns: Sequence[ColumnFacts]) -> None:
    headings = [
        "column",
        "Arrow type",
        "NumPy",
        "codec",
        "nullable",
        "bytes",
        "compression",
        "nulls",
        "min",
        "max",
        "page index",
    ]
    rows = [
        [
            column.name,
            _cut(column.arrow_type, MAX_TYPE),
            f"{column.dtype} {column.shape}" if column.shape else column.dtype,
            _codec(column.codec),
            "yes" if column.nullable else "no",
            "partition" if column.partition else format_bytes(column.bytes),
            ", ".join(column.compression),
            "" if column.nulls is None else grouped(column.nulls),
            "" if column.low is None else in_words(column.low),
            "" if column.high is None else in_words(column.high),
            "" if column.partition else {0.0: "no", 1.0: "yes"}.get(column.page_index, "in part"),
        ]
        for column in columns
    ]
    show(headings, rows, numbers=("bytes", "nulls"))


def _print_rows(rows: Mapping[str, Sequence[str]]) -> None:
    """Print the first rows: one line for each row, or one column for each if the lines are too long."""
    count = max(map(len, rows.values()), default=0)
    if not count:
        return
    say()
    say(f"first {counted(count, 'row')}")
    width = sum(max(map(len, [name, *cells])) + 2 for name, cells in rows.items())
    if width <= line_width():
        show(list(rows), list(zip(*rows.values(), strict=True)))
    else:
        show(["column", *(f"row {at}" for at in range(count))], [[name, *cells] for name, cells in rows.items()])


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _codec(codec: Codec | None) -> str:
    if codec is None:
        return ""
    options = ", ".join(f"{key}={value}" for key, value in _codec_options(codec).items() if value is not None)
    return f"{_codec_name(codec)}({options})" if options else _codec_name(codec)


def _codec_name(codec: Codec) -> str:
    """Return the stored name of a codec."""
    return codec.called if isinstance(codec, Unknown) else codec.name


def _codec_options(codec: Codec) -> Mapping[str, Any]:
    return {} if isinstance(codec, Unknown) else codec.options()
