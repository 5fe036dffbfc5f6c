"""Every version of every Delta table of the corpus has the rows that Spark or delta-rs expects, or raises a clear error."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import penstock as ps
from penstock.errors import PenstockError
from penstock.filters import Column, Expr
from penstock.formats.delta import DeltaFormat

Corpus = Callable[[str], Path]
Inventory = dict[str, dict[str, Any]]

REFUSED = {
    "delta-rs/simple_table_features": "needs reader version 5 of Delta's protocol, with the features columnMapping, blahabl",
    "golden/delete-re-add-same-file-different-transactions": "the file is gone. Version 3 of",
    "golden/deltalog-invalid-protocol-version": "needs reader version 99 of Delta's protocol",
    "golden/deltalog-state-reconstruction-without-metadata": "has no metaData action up to version 0",
    "golden/versions-not-contiguous": "commit 1 is missing in the table's log",
    "kernel-rs/catalog_managed_0": "is managed by a catalog (catalogManaged)",
    "kernel-rs/table-with-geo": "needs unsupported features: geospatial",
}
"""The tables that cannot be read, each with a part of its error message."""

ZONES = {"golden/data-reader-partition-values": "America/Los_Angeles"}
"""The time zones in which Spark wrote partition values without a zone."""

OVERFLOWN = {"delta-rs/table_with_edge_timestamps"}
"""The tables in which delta-rs reads the year 9999 as 1816, because it overflows nanoseconds."""

UNTRUE = {"delta-rs/issue_1374", "kernel-rs/parsed-stats"}
"""The tables whose statistics were edited by hand and are wrong, so that filters may lose rows."""


@pytest.fixture(scope="session")
def tables(corpus: Corpus) -> Inventory:
    """Return the known facts of each table."""
    found: Inventory = json.loads(corpus("delta/inventory.json").read_text())["tables"]
    return found


@pytest.fixture(scope="session")
def root(corpus: Corpus) -> Path:
    """Return the parent directory of the corpus."""
    return corpus("delta").parent


def opened(name: str, facts: dict[str, Any], root: Path, **options: Any) -> ps.Dataset:
    """Return a dataset over a table of the corpus."""
    return ps.open(root / facts["path"], format=DeltaFormat(timezone=ZONES.get(name, "UTC")), **options)


def comparable(value: Any) -> Any:
    """Return a value in a form that does not depend on time zones or on the order of struct fields."""
    if isinstance(value, dict):
        return sorted((key, comparable(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return [comparable(inner) for inner in value]
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat() if value.tzinfo else value.isoformat()
    return value


def content(table: pa.Table) -> Counter[str]:
    """Return the rows of a table with their column names, in no order."""
    names = sorted(table.column_names)
    return Counter(repr([(name, comparable(row[name])) for name in names]) for row in table.to_pylist())


def stored(path: Path, like: pa.Schema) -> pa.Table:
    """Return the expected rows, cast to the types of a schema where that is possible."""
    every = [path] if path.is_file() else [file for file in path.rglob("*.parquet") if "_delta_log" not in file.parts]
    filled = [file for file in every if not file.name.startswith(".") and pq.read_metadata(file).num_rows]
    tables = [pq.ParquetFile(file, coerce_int96_timestamp_unit="us").read() for file in filled]
    parts = []
    for table in tables:
        columns = {}
        for field in table.schema:
            try:
                columns[field.name] = table[field.name].cast(like.field(field.name).type)
            except (KeyError, pa.ArrowException):
                columns[field.name] = table[field.name]
        parts.append(pa.table(columns))
    return pa.concat_tables(parts, promote_options="permissive") if parts else like.empty_table()


def expectations(name: str, facts: dict[str, Any], root: Path) -> Iterator[tuple[int | None, Path]]:
    """Yield versions and the paths of their expected rows, as Spark or delta-rs wrote them."""
    if name in OVERFLOWN or not (facts["spark_expected"] or facts["reference"]):
        yield None, root / facts["path"]  # all its files are current, so pyarrow can read the expected rows
    else:
        yield None, root / (facts["spark_expected"] or facts["reference"])
    for version in sorted((root / facts["path"]).parent.glob("expected/v*")):
        yield int(version.name[1:]), version / "table_content"


def test_every_table_has_its_expected_rows_or_raises(tables: Inventory, root: Path) -> None:
    """Each table has its expected rows at every version with an expectation, or raises the known error."""
    outcomes: Counter[str] = Counter()
    lines = []
    for name, facts in tables.items():
        if name in REFUSED:
            with pytest.raises(PenstockError) as caught:
                opened(name, facts, root).to_arrow()
            assert REFUSED[name] in str(caught.value), name
            outcomes["tables refused"] += 1
            lines.append(f"{name:<70} refused")
            continue
        for version, path in expectations(name, facts, root):
            found = opened(name, facts, root, version=version).to_arrow()
            same = content(found) == content(stored(path, found.schema))
            outcomes["equal" if same else "wrong"] += 1
            lines.append(f"{name:<70} {'newest' if version is None else version!s:<7} {'equal' if same else 'WRONG'}")
        outcomes["tables read"] += 1

    print("\n".join([*lines, str(dict(outcomes))]))  # noqa: T201 - shown by pytest -s
    assert outcomes["wrong"] == 0
    assert (outcomes["tables read"], outcomes["tables refused"]) == (len(tables) - len(REFUSED), len(REFUSED))
    assert outcomes["equal"] >= 114


def test_every_version_has_as_many_rows_as_delta_rs_counts(tables: Inventory, root: Path) -> None:
    """Every version has as many rows as delta-rs counts; where delta-rs fails, rows or an error are accepted."""
    outcomes: Counter[str] = Counter()
    for name, facts in tables.items():
        for version, expected in (facts["rows_by_version"] or {}).items():
            try:
                found = opened(name, facts, root, version=int(version)).to_arrow().num_rows
            except PenstockError:
                found = "refused"
            assert found == expected or expected is None, (name, version)
            outcomes["refused" if found == "refused" else "equal" if expected is not None else "read by us alone"] += 1

    print(dict(outcomes))  # noqa: T201 - shown by pytest -s
    assert outcomes["equal"] >= 300
    assert outcomes["refused"] <= 12


def test_every_version_has_the_rows_that_delta_rs_reads(tables: Inventory, root: Path) -> None:
    """Every version that delta-rs can read has the same values."""
    compared = 0
    for name, facts in tables.items():
        for version in facts["rows_by_version"] or {}:
            try:
                theirs = pa.table(DeltaTable(root / facts["path"], version=int(version)).scan())
            except Exception:  # noqa: BLE001, S112 - any failure of delta-rs
                continue
            if name not in OVERFLOWN:
                assert content(ps.open(root / facts["path"], version=int(version)).to_arrow()) == content(theirs), (
                    name,
                    version,
                )
                compared += 1

    assert compared >= 295


def leaves(name: list[str], values: pa.ChunkedArray) -> Iterator[tuple[list[str], pa.ChunkedArray]]:
    """Yield a column, or the fields of a struct column, that filters can query."""
    kind = values.type
    if pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            yield from leaves([*name, kind.field(at).name], pc.struct_field(values, [at]))
    elif not pa.types.is_nested(kind) and not pa.types.is_null(kind):
        yield name, values


def queries(queried: Column, values: pa.ChunkedArray) -> Iterator[Expr]:
    """Yield filters on a column by some of its own values."""
    yield from (queried.is_null(), queried.is_not_null())
    known = [value for value in pc.unique(values).to_pylist() if value is not None and value == value][:4]  # noqa: PLR0124
    for value in known:
        yield from (queried == value, queried != value)
        if not isinstance(value, bool | bytes):
            yield from (queried < value, queried >= value)


@pytest.mark.slow
def test_statistics_of_other_writers_never_prune_a_selected_row(tables: Inventory, root: Path) -> None:
    """For every column of every table, a pruned query selects as many rows as its condition on all rows."""
    queried = pruned = 0
    for name, facts in tables.items():
        if name in REFUSED or name in UNTRUE:
            continue
        ds = opened(name, facts, root)
        table = ds.to_arrow()
        for column in table.column_names:
            for path, values in leaves([column], table[column]):
                start = ps.col(path[0])
                for field in path[1:]:
                    start = start[field]
                for condition in queries(start, values):
                    query = ds.where(condition)
                    assert query.num_rows == int(condition.mask(table).sum()), (name, condition)
                    plan = query._table.plan(query._query)
                    queried, pruned = queried + 1, pruned + plan.pruned.files - plan.pruned.files_kept

    assert queried >= 4000
    assert pruned >= 4000


def test_tables_of_other_writers_are_iterated(tables: Inventory, root: Path) -> None:
    """Shuffled batches of every table have all columns and all rows."""
    for name, facts in tables.items():
        if name in REFUSED:
            continue
        ds = opened(name, facts, root)
        count = ds.num_rows
        masked = ds.nulls(ps.Mask(), ".*").shuffle(ps.WindowShuffle(rows=500), seed=1).batch(64, last="uneven")
        seen = 0
        for batch in masked if count else ():
            assert set(ds.schema.names) <= set(batch), name
            seen += len(next(iter(batch.values())))
        assert seen == count, name


def test_a_directory_that_lost_its_log_is_plain_parquet(corpus: Corpus) -> None:
    """A directory without its log is read as plain Parquet, and raises an error if the Delta format is given."""
    path = corpus("delta/golden/no-delta-log-folder/delta")

    with pytest.raises(PenstockError, match="is no Delta table: it has no _delta_log"):
        ps.open(path, format=DeltaFormat())
    assert ps.open(path).num_rows == sum(pq.read_metadata(file).num_rows for file in path.glob("*.parquet"))
