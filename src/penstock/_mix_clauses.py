"""Argument checks of mixtures: sources that fit together, weights, and clauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import isfinite
from numbers import Rational, Real
from typing import Any, get_args

import pyarrow as pa

from penstock._dataset import clauses, explain
from penstock._dataset.names import matching_names
from penstock._engine.batch.ragged import depends_on_batch
from penstock._engine.deliver.interleave import SOURCE
from penstock._engine.deliver.mixture import MixtureTable, Source
from penstock._engine.order.mixture import Stop
from penstock._engine.query.query import ColumnDecoding, Query
from penstock.dataset import Dataset
from penstock.errors import ArgumentError, ColumnNotFoundError
from penstock.policies import DEFAULT_NULLS, DEFAULT_RAGGED, AsObjects, Offsets, Pad, Ragged, RaiseIfRagged, Resize
from penstock.schema import Field, Schema

__all__ = [
    "RESIZE_ADVICE",
    "check_added_columns",
    "missing_attribute",
    "mixture_sources",
    "output_schema",
    "shared_policies",
    "valid_stop",
    "with_ragged",
]

RESIZE_ADVICE = (
    "Maps of a mixture and of its sources cannot change the number of rows, since every source has an exact share of them. "
    "To pack lists, use .ragged(penstock.Offsets(), column) of the mixture: the map gets all values of a batch in one array, "
    "and can return that column with any length."
)
"""Advice in the error for a map of a mixture that changes the number of rows."""

RESULTS = ("head", "take", "to_arrow", "to_pandas")
"""Methods of a dataset that return rows, and that a mixture does not have."""


def mixture_sources(pairs: object) -> tuple[Source, ...]:
    """Return the sources of a mixture, after a check that they fit together."""
    if not isinstance(pairs, Sequence) or isinstance(pairs, str) or not pairs:
        msg = f"mix() got {pairs!r}; expected a list of datasets and weights, for example mix([(ds_a, 0.7), (ds_b, 0.3)])."
        raise ArgumentError(msg)
    sources = tuple(_source(number, pair) for number, pair in enumerate(pairs))
    for number, source in enumerate(sources):
        if source.query.skip is not None:
            msg = f"mix() got source {number} with .on_bad_row('skip'), and a mixture needs an exact number of rows of each. "
            raise ArgumentError(msg + "Remove .on_bad_row().")
    _check_batches(sources)
    _check_columns(sources)
    return sources


def valid_stop(stop: Any) -> Stop:
    """Return where an epoch ends."""
    if stop not in get_args(Stop):
        known = " or ".join(f'"{one}"' for one in get_args(Stop))
        raise ArgumentError(f"mix() got stop={stop!r}; expected {known}: at the end of the first source, or of all.")
    valid: Stop = stop
    return valid


def output_schema(mixture: MixtureTable, query: Query) -> Schema:
    """Return the columns of a batch, as far as they are known before maps run."""
    first = mixture.sources[0]
    columns = explain.output_schema(first.table, first.query)
    fields = [output for field in columns for output in _fields_of(field, mixture, query)]
    if mixture.numbered:
        fields.append(Field(SOURCE, int))
    valid = [Field("_valid", bool)] if query.ending == "pad" else []
    for step in query.maps:
        fields = fields if step.fields is None else list(step.fields)
    return Schema("Mixture", [*(field for field in fields if field.name != "_valid" or not valid), *valid])


def check_added_columns(mixture: MixtureTable, query: Query) -> None:
    """Check that the columns that a mixture adds do not have the names of columns of its sources."""
    first = mixture.sources[0]
    columns = explain.output_schema(first.table, first.query)
    names = columns.names
    added = [SOURCE] if mixture.numbered else []
    added += ["_valid"] if query.ending == "pad" else []
    added += [output.name for field in columns for output in _fields_of(field, mixture, query)[1:]]
    flat = [] if mixture.batched else [one.name for one in query.policies if isinstance(one.ragged, Offsets)]
    if flat and query.last == "pad":
        msg = (
            f'Column {flat[0]!r} has the policy Offsets(), which does not combine with last="pad". '
            'Use Pad() for it, or last="wrap", "drop" or "uneven".'
        )
        raise ArgumentError(msg)
    for name in added:
        if name in names:
            msg = (
                f"This mixture adds a column {name!r}, and its sources have a column of that name. Leave theirs out with "
                ".select(...), or remove the clause that adds the other."
            )
            raise ArgumentError(msg)


def _fields_of(field: Field, mixture: MixtureTable, query: Query) -> list[Field]:
    """Return the columns that a column of the sources becomes with the policies of the mixture."""
    return [field] if mixture.batched else explain.decoded_fields(field, query.policies)


def shared_policies(sources: tuple[Source, ...]) -> tuple[tuple[Source, ...], tuple[ColumnDecoding, ...]]:
    """Return sources without the policies that act on batches with rows of all sources, and these policies.

    If sources have batches of their own, their policies act on those.

    Raises:
        ArgumentError: If sources have different policies of this kind.
    """
    shared = [_batch_policies(source) for source in sources]
    for number, policies in enumerate(shared):
        for name in {**shared[0], **policies}:
            one, other = (part[name].ragged if name in part else DEFAULT_RAGGED for part in (shared[0], policies))
            if one != other:
                msg = (
                    f"Column {name!r} has the policy {one} in source 0 of the mixture and {other} in source {number}; expected "
                    "one policy for a batch with rows of all sources. Set it on the mixture: penstock.mix([...]).ragged("
                    f"penstock.Pad(), {name!r})."
                )
                raise ArgumentError(msg)
    plain = tuple(_without_policies(source, policies) for source, policies in zip(sources, shared, strict=True))
    return plain, tuple(shared[0].values())


def _batch_policies(source: Source) -> dict[str, ColumnDecoding]:
    """Return the policies of a source whose results depend on the other rows of a batch."""
    query = source.query
    if query.size is not None or query.sequence is not None or not query.policies:
        return {}
    plain = replace(query, policies=tuple(replace(one, ragged=DEFAULT_RAGGED) for one in query.policies), maps=())
    fields = {field.name: field for field in explain.output_schema(source.table, plain)}
    return {
        one.name: ColumnDecoding(name=one.name, ragged=one.ragged, field=fields[one.name])
        for one in query.policies
        if one.name in fields and depends_on_batch(one, fields[one.name].shape)
    }


def _without_policies(source: Source, shared: dict[str, ColumnDecoding]) -> Source:
    """Return a source without the shared policies, and without policies for columns of one shape, which need none."""
    query = source.query
    if not query.policies:
        return source
    plain = replace(query, policies=(), maps=())
    flat = {
        field.name for field in explain.output_schema(source.table, plain) if not _may_be_ragged(field, source, named=False)
    } - shared.keys()
    policies = [
        replace(one, ragged=DEFAULT_RAGGED)
        if (one.name in flat and isinstance(one.ragged, Pad | Offsets))
        or (one.name in shared and not isinstance(one.ragged, RaiseIfRagged))
        else one
        for one in query.policies
    ]
    changed = tuple(one for one in policies if (one.nulls, one.ragged) != (DEFAULT_NULLS, DEFAULT_RAGGED))
    return replace(source, query=replace(query, policies=changed))


def with_ragged(policy: Ragged, columns: Sequence[str], mixture: MixtureTable, query: Query) -> tuple[MixtureTable, Query]:
    """Return a mixture with another policy for lists: in batches with rows of all sources, or in the batches of each source."""
    if mixture.batched or isinstance(policy, Resize):  # which does not depend on other rows
        return replace(mixture, sources=tuple(_source_with_ragged(one, policy, columns) for one in mixture.sources)), query
    first = mixture.sources[0]
    fields = {field.name: field for field in explain.output_schema(first.table, first.query)}
    if not first.query.maps:
        clauses.with_policy(columns, Query(), first.table.snapshot, ragged=policy)  # checks the arguments
    clauses.check_policy("ragged", policy, columns)
    undeclared = any(step.fields is None for one in mixture.sources for step in one.query.maps)
    policies = {one.name: one for one in query.policies}
    for pattern in columns:
        try:
            names = matching_names(pattern, list(fields), "the mixture")
        except ColumnNotFoundError:
            if not undeclared:
                raise
            names = [pattern]  # a map of the sources can add it
        names = [name for name in names if name not in fields or _may_be_ragged(fields[name], first, named=name == pattern)]
        policies.update({name: ColumnDecoding(name=name, ragged=policy, field=fields.get(name)) for name in names})
    changed = tuple(one for one in policies.values() if not isinstance(one.ragged, AsObjects))
    return mixture, replace(query, policies=changed)


def _may_be_ragged(field: Field, source: Source, *, named: bool) -> bool:
    """Return whether a column of a source may have lists of different lengths.

    The shape of some Arrow types is not known. A named column without a shape is checked when its rows are read.
    """
    schema = source.table.snapshot.schema
    opaque = field.name in schema.names and isinstance(schema.field(field.name).type, pa.BaseExtensionType)
    return None in field.shape or (not field.shape and (opaque or named))


def _source_with_ragged(source: Source, policy: Ragged, columns: Sequence[str]) -> Source:
    query, snapshot = source.query, source.table.snapshot
    policies = clauses.with_policy(columns, query, snapshot, ragged=policy)
    return replace(source, query=clauses.check_query(replace(query, policies=policies), snapshot))


def missing_attribute(name: str) -> str:
    """Return the message for an attribute that a mixture does not have; its sources have the attributes of a dataset."""
    if name.startswith("_") or not hasattr(Dataset, name):
        return f"'Mixture' object has no attribute {name!r}"
    if name == "on_bad_row":
        return (
            "A mixture has no .on_bad_row(): it needs an exact number of rows of each source. Find bad rows with a loader of "
            "each source, and exclude them with .where(...)."
        )
    if name in RESULTS:
        return f"A mixture has no .{name}(), since its rows come from several tables. Call it on each source: ds.{name}(...)."
    return (
        f"A mixture has no .{name}(): clauses about rows and columns belong to its sources. Call it on each source: "
        f"penstock.mix([(ds.{name}(...), 1), ...])."
    )


def _source(number: int, pair: object) -> Source:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:  # noqa: PLR2004 - a pair
        msg = f"mix() got {pair!r} as source {number}; expected a dataset and its weight, for example (ds, 0.5)."
        raise ArgumentError(msg)
    ds, weight = pair
    if not isinstance(ds, Dataset):
        msg = (
            f"mix() got {type(ds).__name__} as source {number}; expected a dataset, for example penstock.open(url). To mix a "
            "mixture, pass its sources."
        )
        raise ArgumentError(msg)
    table, query = ds._table, ds._query  # noqa: SLF001 - the parts of a dataset
    _check_clauses(number, table.snapshot.table, query)
    maps = tuple(replace(step, advice=RESIZE_ADVICE) for step in query.maps)
    return Source(table=table, query=replace(query, maps=maps), weight=_weight(number, weight))


def _weight(number: int, weight: object) -> int | float | Fraction:
    """Return a weight as an integer, a fraction or a float."""
    value: int | float | Fraction = 0
    if isinstance(weight, Rational) and not isinstance(weight, bool):
        value = Fraction(int(weight.numerator), int(weight.denominator))
        value = value.numerator if value.denominator == 1 else value
    elif isinstance(weight, Real):
        value = float(weight)
    if isinstance(weight, bool) or not isfinite(value) or value <= 0:
        msg = f"mix() got weight {weight!r} for source {number}; expected a positive number, for example (ds, 0.5)."
        raise ArgumentError(msg)
    return value


def _check_clauses(number: int, name: str, query: Query) -> None:
    """Check that a source has no clause that belongs to the mixture."""
    problems = {
        "has .shard(). Shard the mixture instead: penstock.mix([...]).shard(rank, world_size)": (
            query.world_size > 1 or query.lanes is not None
        ),
        'has .repeat(). Remove it and use stop="all", or repeat the mixture': query.epochs != 1,
        "has a lazy filter, and the rows of a source are counted before it is read. Remove lazy=True": query.lazy,
        'has .using(workers="processes"), and sources are read and mapped on threads. Remove it, or use it on the mixture, '
        "whose own maps can run in processes": query.workers == "processes",
        'has .batch("row_group"), whose batches differ in size. Use a number of rows, or batch the mixture': (
            query.size == "row_group"
        ),
    }
    for problem, applies in problems.items():
        if applies:
            msg = f"Source {number} of the mixture ({name}) {problem}."
            raise ArgumentError(msg)


def _check_batches(sources: Sequence[Source]) -> None:
    """Check that all sources have batches, or none."""
    batched = [source.query.size is not None for source in sources]
    if any(batched) and not all(batched):
        with_batches, without = batched.index(True), batched.index(False)
        msg = (
            f"Source {with_batches} of the mixture has batches, and source {without} has single rows; expected one kind. To "
            "mix rows, use .batch() on the mixture and not on its sources; to mix whole batches, use it on every source."
        )
        raise ArgumentError(msg)


def _check_columns(sources: Sequence[Source]) -> None:
    """Check that sources have the same columns; columns of maps that do not declare them are checked when they run."""
    known = [
        (number, source.table.snapshot.table, explain.output_schema(source.table, source.query))
        for number, source in enumerate(sources)
        if all(step.fields is not None for step in source.query.maps)
    ]
    for number, name, columns in known[1:]:
        first, first_name, expected = known[0]
        this, other = f"source {number} ({name})", f"source {first} ({first_name})"
        for column, has, lacks in (
            *((one, other, this) for one in expected.names if one not in columns.names),
            *((one, this, other) for one in columns.names if one not in expected.names),
        ):
            base, _, suffix = column.rpartition("_")
            if base in expected.names and base in columns.names and suffix in ("length", "offsets", "valid"):
                remedy = f"A policy of column {base!r} adds it. Use the same .ragged() and .nulls() on all sources."
            else:
                remedy = "Leave it out with .select(...), or add it with .map(...)."
            msg = f"Column {column!r} is in {has} and not in {lacks}; expected the same columns in all sources. "
            raise ArgumentError(msg + remedy)
        for column in expected.names:
            left, right = expected[column], columns[column]
            if (left.dtype, left.shape) != (right.dtype, right.shape):
                msg = (
                    f"Column {column!r} is {_type(left)} in {other} and {_type(right)} in {this}; expected the same types in "
                    "all sources. Convert it with .map(..., fields=[...]), or leave it out with .select(...)."
                )
                raise ArgumentError(msg)


def _type(field: Field) -> str:
    return f"{field.dtype} of shape {field.shape}" if field.shape else str(field.dtype)
