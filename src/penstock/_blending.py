"""What a mixture accepts: sources that go together, and weights; each is checked where it is said."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isfinite
from numbers import Rational, Real
from typing import Any, get_args

from penstock import _telling as telling
from penstock._engine.interleave import SOURCE
from penstock._engine.mixed import Mixed, Source
from penstock._engine.mixture import Stop
from penstock._engine.question import Question
from penstock.dataset import Dataset
from penstock.errors import ArgumentError
from penstock.schema import Field, Schema

__all__ = ["check_added", "lacking", "schema", "sources", "stop"]

ANSWERS = ("head", "take", "to_arrow", "to_pandas")
"""What a dataset is asked last, and a mixture cannot be."""


def sources(given: object) -> tuple[Source, ...]:
    """Return the sources of a mixture, which must be pairs of datasets that go together and weights."""
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        msg = f"mix got {given!r}. A list of datasets and weights was expected. Give one: mix([(ds_a, 0.7), (ds_b, 0.3)])."
        raise ArgumentError(msg)
    found = tuple(_source(number, pair) for number, pair in enumerate(given))
    for number, source in enumerate(found):
        if source.question.skip is not None:
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


def schema(mixed: Mixed, question: Question) -> Schema:
    """Return the columns that the consumer gets, as far as they are known before any map runs."""
    first = mixed.sources[0]
    fields = list(telling.schema(first.table, first.question))
    if mixed.numbered:
        fields.append(Field(SOURCE, int))
    marks = [Field("_valid", bool)] if question.ending == "pad" else []
    for step in question.maps:
        fields = fields if step.fields is None else list(step.fields)
    return Schema("Mixture", [*(field for field in fields if field.name != "_valid" or not marks), *marks])


def check_added(mixed: Mixed, question: Question) -> None:
    """Refuse columns of ours that would hide those of the sources."""
    first = mixed.sources[0]
    names = telling.schema(first.table, first.question).names
    added = [SOURCE] if mixed.numbered else []
    added += ["_valid"] if question.ending == "pad" else []
    for name in added:
        if name in names:
            msg = (
                f"This mixture adds a column {name!r}, and its sources have one of that name. Leave theirs out with "
                ".select(...), or the clause that adds it."
            )
            raise ArgumentError(msg)


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
    table, question = ds._table, ds._question  # noqa: SLF001 - a dataset has no other parts
    _check_clauses(number, table.snapshot.table, question)
    return Source(table=table, question=question, weight=_weight(number, weight))


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


def _check_clauses(number: int, name: str, question: Question) -> None:
    """Refuse what a source cannot be asked, and a mixture can."""
    faults = {
        "has .shard(), and ranks share out the mixture. Shard that: penstock.mix([...]).shard(rank, world_size)": (
            question.world_size > 1 or question.lanes is not None
        ),
        'has .repeat(), and how often a source is repeated is what stop="all" says. Leave it out, or repeat the mixture': (
            question.epochs != 1
        ),
        "has a lazy filter, and how far a source has come must be known without reading. Leave lazy=True out": question.lazy,
        'has .using(workers="processes"), and sources are read and mapped on threads. Leave it out, or give it to the mixture, '
        "whose own maps may run in processes": question.workers == "processes",
        'has .batch("row_group"), whose batches are of unequal sizes. Give a number of rows, or batch the mixture': (
            question.size == "row_group"
        ),
    }
    for fault, is_so in faults.items():
        if is_so:
            msg = f"Source {number} of the mixture ({name}) {fault}."
            raise ArgumentError(msg)


def _check_slots(found: Sequence[Source]) -> None:
    """Refuse to mix rows with batches."""
    batched = [source.question.size is not None for source in found]
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
        (number, source.table.snapshot.table, telling.schema(source.table, source.question))
        for number, source in enumerate(found)
        if all(step.fields is not None for step in source.question.maps)
    ]
    for number, name, columns in known[1:]:
        first, its, expected = known[0]
        here, there = f"source {number} ({name})", f"source {first} ({its})"
        for column, has, lacks in (
            *((one, there, here) for one in expected.names if one not in columns.names),
            *((one, here, there) for one in columns.names if one not in expected.names),
        ):
            msg = (
                f"Column {column!r} is in {has} and not in {lacks}. All sources of a mixture must have the same columns. Leave "
                "it out with .select(...), or make it with .map(...)."
            )
            raise ArgumentError(msg)
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
