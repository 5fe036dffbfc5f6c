"""What a mixture accepts: sources that go together, and weights; each is checked where it is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import isfinite
from numbers import Rational, Real
from typing import Any, get_args

import pyarrow as pa

from penstock._dataset import clauses
from penstock._dataset import explain as telling
from penstock._dataset.names import matching
from penstock._engine.batch.ragged import depends_on_batch
from penstock._engine.deliver.interleave import SOURCE
from penstock._engine.deliver.mixture import MixtureTable, Source
from penstock._engine.order.mixture import Stop
from penstock._engine.query.query import Query
from penstock._engine.query.values import Column
from penstock.dataset import Dataset
from penstock.errors import ArgumentError, ColumnNotFoundError
from penstock.policies import DEFAULT_NULLS, DEFAULT_RAGGED, AsObjects, Offsets, Pad, Ragged, RaiseIfRagged, Resize
from penstock.schema import Field, Schema

__all__ = ["check_added", "gathered", "lacking", "ragged", "schema", "sources", "stop"]

RESIZE_ADVICE = (
    "Maps of a mixture and of its sources cannot change the number of rows, since every source has its exact share of them. "
    "To pack lists, give the mixture .ragged(penstock.Offsets(), column): the map gets all values of a batch in one array, and "
    "may return that column with any length."
)
"""What to do where a map of a mixture changes the number of rows."""

ANSWERS = ("head", "take", "to_arrow", "to_pandas")
"""What a dataset is asked last, and a mixture cannot be."""


def sources(given: object) -> tuple[Source, ...]:
    """Return the sources of a mixture, which must be pairs of datasets that go together and weights."""
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        msg = f"mix got {given!r}. A list of datasets and weights was expected. Give one: mix([(ds_a, 0.7), (ds_b, 0.3)])."
        raise ArgumentError(msg)
    found = tuple(_source(number, pair) for number, pair in enumerate(given))
    for number, source in enumerate(found):
        if source.query.skip is not None:
            msg = f"Source {number} of the mixture skips bad rows, and a mixture has exact shares of each. "
            raise ArgumentError(msg + "Leave .on_bad_row() out.")
    _check_slots(found)
    _check_columns(found)
    return found


def stop(said: Any) -> Stop:
    """Return where an epoch ends."""
    if said not in get_args(Stop):
        known = " or ".join(f'"{one}"' for one in get_args(Stop))
        msg = f"mix got stop={said!r}. {known} was expected. Choose one: with the first source, or when all are done."
        raise ArgumentError(msg)
    found: Stop = said
    return found


def schema(mixture: MixtureTable, query: Query) -> Schema:
    """Return the columns that the consumer gets, as far as they are known before any map runs."""
    first = mixture.sources[0]
    fields = [made for field in telling.schema(first.table, first.query) for made in _after(field, mixture, query)]
    if mixture.numbered:
        fields.append(Field(SOURCE, int))
    marks = [Field("_valid", bool)] if query.ending == "pad" else []
    for step in query.maps:
        fields = fields if step.fields is None else list(step.fields)
    return Schema("Mixture", [*(field for field in fields if field.name != "_valid" or not marks), *marks])


def check_added(mixture: MixtureTable, query: Query) -> None:
    """Refuse columns of ours that would hide those of the sources."""
    first = mixture.sources[0]
    columns = telling.schema(first.table, first.query)
    names = columns.names
    added = [SOURCE] if mixture.numbered else []
    added += ["_valid"] if query.ending == "pad" else []
    added += [made.name for field in columns for made in _after(field, mixture, query)[1:]]
    flat = [] if mixture.batched else [one.name for one in query.policies if isinstance(one.ragged, Offsets)]
    if flat and query.last == "pad":
        msg = (
            f'Column {flat[0]!r} comes as Offsets(), all values of a batch in one array, which last="pad" cannot fill up. '
            'Use Pad() for it, or last="wrap", "drop" or "uneven".'
        )
        raise ArgumentError(msg)
    for name in added:
        if name in names:
            msg = (
                f"This mixture adds a column {name!r}, and its sources have one of that name. Leave theirs out with "
                ".select(...), or the clause that adds it."
            )
            raise ArgumentError(msg)


def _after(field: Field, mixture: MixtureTable, query: Query) -> list[Field]:
    """Return the columns that a column of the sources becomes under the policies of a mixture of rows."""
    return [field] if mixture.batched else telling.decoded(field, query.policies)


def gathered(found: tuple[Source, ...]) -> tuple[tuple[Source, ...], tuple[Column, ...]]:
    """Return sources, and the policies that act on batches with rows of all of them instead of on each source.

    Where sources have batches of their own, their policies act on those.

    Raises:
        ArgumentError: If sources differ in such a policy.
    """
    late = [_late(source) for source in found]
    for number, policies in enumerate(late):
        for name in {**late[0], **policies}:
            one, other = (some[name].ragged if name in some else DEFAULT_RAGGED for some in (late[0], policies))
            if one != other:
                msg = (
                    f"Column {name!r} comes as {one} in source 0 of the mixture and as {other} in source {number}. One policy "
                    f"is needed for a batch with rows of all sources. Give it to the mixture: penstock.mix([...]).ragged("
                    f"penstock.Pad(), {name!r})."
                )
                raise ArgumentError(msg)
    return tuple(_without(source, policies) for source, policies in zip(found, late, strict=True)), tuple(late[0].values())


def _late(source: Source) -> dict[str, Column]:
    """Return the policies of a source whose outcome depends on the rows of the mixture's batch."""
    query = source.query
    if query.size is not None or query.sequence is not None or not query.policies:
        return {}
    plain = replace(query, policies=tuple(replace(one, ragged=DEFAULT_RAGGED) for one in query.policies), maps=())
    fields = {field.name: field for field in telling.schema(source.table, plain)}
    return {
        one.name: Column(name=one.name, ragged=one.ragged, field=fields[one.name])
        for one in query.policies
        if one.name in fields and depends_on_batch(one, fields[one.name].shape)
    }


def _without(source: Source, late: dict[str, Column]) -> Source:
    """Return a source that leaves some policies to the mixture, and has none for columns that a pattern named in vain.

    Lists of one length are one array in each source already.
    """
    query = source.query
    if not query.policies:
        return source
    plain = replace(query, policies=(), maps=())
    flat = {
        field.name for field in telling.schema(source.table, plain) if not _may_be_ragged(field, source, named=False)
    } - late.keys()
    kept = [
        replace(one, ragged=DEFAULT_RAGGED)
        if (one.name in flat and isinstance(one.ragged, Pad | Offsets))
        or (one.name in late and not isinstance(one.ragged, RaiseIfRagged))
        else one
        for one in query.policies
    ]
    policies = tuple(one for one in kept if (one.nulls, one.ragged) != (DEFAULT_NULLS, DEFAULT_RAGGED))
    return replace(source, query=replace(query, policies=policies))


def ragged(policy: Ragged, columns: Sequence[str], mixture: MixtureTable, query: Query) -> tuple[MixtureTable, Query]:
    """Return a mixture whose lists are treated otherwise: in batches with rows of all sources, or in those of each source."""
    if mixture.batched or isinstance(policy, Resize):  # an image is resized by itself
        return replace(mixture, sources=tuple(_with_ragged(one, policy, columns) for one in mixture.sources)), query
    first = mixture.sources[0]
    fields = {field.name: field for field in telling.schema(first.table, first.query)}
    if not first.query.maps:
        clauses.policies(columns, Query(), first.table.snapshot, ragged=policy)  # which refuses what cannot be asked
    clauses.check_policy("ragged", policy, columns)
    undeclared = any(step.fields is None for one in mixture.sources for step in one.query.maps)
    found = {one.name: one for one in query.policies}
    for pattern in columns:
        try:
            names = matching(pattern, list(fields), "the mixture")
        except ColumnNotFoundError:
            if not undeclared:
                raise
            names = [pattern]  # maps of the sources may make it
        names = [name for name in names if name not in fields or _may_be_ragged(fields[name], first, named=name == pattern)]
        found.update({name: Column(name=name, ragged=policy, field=fields.get(name)) for name in names})
    kept = [one for one in found.values() if not isinstance(one.ragged, AsObjects)]
    return mixture, replace(query, policies=tuple(kept))


def _may_be_ragged(field: Field, source: Source, *, named: bool) -> bool:
    """Return whether a column of a source may have lists that differ in length; others stay as they are, as in a dataset.

    Some types of Arrow have arrays of which no shape is known. Single values that were named are told apart when they come.
    """
    schema = source.table.snapshot.schema
    opaque = field.name in schema.names and isinstance(schema.field(field.name).type, pa.BaseExtensionType)
    return None in field.shape or (not field.shape and (opaque or named))


def _with_ragged(source: Source, policy: Ragged, columns: Sequence[str]) -> Source:
    asked, snapshot = source.query, source.table.snapshot
    policies = clauses.policies(columns, asked, snapshot, ragged=policy)
    return replace(source, query=clauses.checked(replace(asked, policies=policies), snapshot))


def lacking(name: str) -> str:
    """Return what is said to those who ask a mixture for what it does not have; what datasets have, their sources do."""
    if name.startswith("_") or not hasattr(Dataset, name):
        return f"'Mixture' object has no attribute {name!r}"
    if name == "on_bad_row":
        return (
            "A mixture has no .on_bad_row(): it has exact shares of each source, and cannot skip their rows. Find bad rows "
            "with a loader of each source alone, and leave them out with .where(...)."
        )
    if name in ANSWERS:
        return f"A mixture has no .{name}(): it has rows of several tables in turn. Ask it of each source: ds.{name}(...)."
    return (
        f"A mixture has no .{name}(): what concerns rows and columns is asked of its sources. Ask it of each before they are "
        f"mixed: penstock.mix([(ds.{name}(...), 1), ...])."
    )


def _source(number: int, pair: object) -> Source:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:  # noqa: PLR2004 - a pair
        msg = f"mix got {pair!r} as source {number}. A dataset and its weight were expected. Give both: (ds, 0.5)."
        raise ArgumentError(msg)
    ds, weight = pair
    if not isinstance(ds, Dataset):
        msg = (
            f"mix got {type(ds).__name__} as source {number}. A dataset was expected. Give one, penstock.open(url); of a "
            "mixture, give its sources."
        )
        raise ArgumentError(msg)
    table, query = ds._table, ds._query  # noqa: SLF001 - a dataset has no other parts
    _check_clauses(number, table.snapshot.table, query)
    maps = tuple(replace(step, advice=RESIZE_ADVICE) for step in query.maps)
    return Source(table=table, query=replace(query, maps=maps), weight=_weight(number, weight))


def _weight(number: int, weight: object) -> int | float | Fraction:
    """Return a weight as a plain number."""
    found: int | float | Fraction = 0
    if isinstance(weight, Rational) and not isinstance(weight, bool):
        found = Fraction(int(weight.numerator), int(weight.denominator))
        found = found.numerator if found.denominator == 1 else found
    elif isinstance(weight, Real):
        found = float(weight)
    if isinstance(weight, bool) or not isfinite(found) or found <= 0:
        msg = f"mix got weight {weight!r} for source {number}. A positive number was expected. Give one, or leave it out."
        raise ArgumentError(msg)
    return found


def _check_clauses(number: int, name: str, query: Query) -> None:
    """Refuse what a source cannot be asked, and a mixture can."""
    faults = {
        "has .shard(), and ranks share out the mixture. Shard that: penstock.mix([...]).shard(rank, world_size)": (
            query.world_size > 1 or query.lanes is not None
        ),
        'has .repeat(), and how often a source is repeated is what stop="all" says. Leave it out, or repeat the mixture': (
            query.epochs != 1
        ),
        "has a lazy filter, and how far a source has come must be known without reading. Leave lazy=True out": query.lazy,
        'has .using(workers="processes"), and sources are read and mapped on threads. Leave it out, or give it to the mixture, '
        "whose own maps may run in processes": query.workers == "processes",
        'has .batch("row_group"), whose batches are of unequal sizes. Give a number of rows, or batch the mixture': (
            query.size == "row_group"
        ),
    }
    for fault, is_so in faults.items():
        if is_so:
            msg = f"Source {number} of the mixture ({name}) {fault}."
            raise ArgumentError(msg)


def _check_slots(found: Sequence[Source]) -> None:
    """Refuse to mix rows with batches."""
    batched = [source.query.size is not None for source in found]
    if any(batched) and not all(batched):
        with_batches, without = batched.index(True), batched.index(False)
        msg = (
            f"Source {with_batches} of the mixture has batches, and source {without} has single rows. All must be alike. Leave "
            ".batch() out of all sources to mix rows, and give it to the mixture; or give it to each to mix whole batches."
        )
        raise ArgumentError(msg)


def _check_columns(found: Sequence[Source]) -> None:
    """Refuse sources whose columns differ; what maps make and do not declare shows when they run."""
    known = [
        (number, source.table.snapshot.table, telling.schema(source.table, source.query))
        for number, source in enumerate(found)
        if all(step.fields is not None for step in source.query.maps)
    ]
    for number, name, columns in known[1:]:
        first, its, expected = known[0]
        here, there = f"source {number} ({name})", f"source {first} ({its})"
        for column, has, lacks in (
            *((one, there, here) for one in expected.names if one not in columns.names),
            *((one, here, there) for one in columns.names if one not in expected.names),
        ):
            base, _, suffix = column.rpartition("_")
            if base in expected.names and base in columns.names and suffix in ("length", "offsets", "valid"):
                remedy = f"Column {base!r} has a policy there that adds it. Give all sources the same .ragged() and .nulls()."
            else:
                remedy = "Leave it out with .select(...), or make it with .map(...)."
            msg = f"Column {column!r} is in {has} and not in {lacks}. All sources of a mixture must have the same columns. "
            raise ArgumentError(msg + remedy)
        for column in expected.names:
            one, other = expected[column], columns[column]
            if (one.dtype, one.shape) != (other.dtype, other.shape):
                msg = (
                    f"Column {column!r} is {_kind(one)} in {there} and {_kind(other)} in {here}. All sources of a mixture must "
                    "have the same types. Turn one into the other with .map(..., fields=[...]), or leave it out with "
                    ".select(...)."
                )
                raise ArgumentError(msg)


def _kind(field: Field) -> str:
    return f"{field.dtype} of shape {field.shape}" if field.shape else str(field.dtype)
