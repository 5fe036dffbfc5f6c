"""The filter language: building, errors, masks of rows, and pruning by statistics."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from itertools import pairwise
from operator import eq, ge, gt, le, lt, ne
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ArgumentError, ColumnNotFoundError, FilterError
from penstock.filters import Expr, Verdict, col, from_tuples, in_split, same
from penstock.model import ColumnRange
from penstock.stable_hash import stable_hash

pd: Any = pytest.importorskip("pandas")

NAN = float("nan")
UTC = dt.UTC

SCHEMA = pa.schema(
    {
        "x": pa.int64(),
        "tiny": pa.int8(),
        "huge": pa.uint64(),
        "f": pa.float64(),
        "f32": pa.float32(),
        "s": pa.string(),
        "raw": pa.binary(),
        "flag": pa.bool_(),
        "price": pa.decimal128(10, 2),
        "day": pa.date32(),
        "at": pa.timestamp("us"),
        "seen": pa.timestamp("ms", "Europe/Paris"),
        "clock": pa.time64("us"),
        "lap": pa.duration("s"),
        "tags": pa.list_(pa.string()),
        "a": pa.struct({"b": pa.int64(), "c": pa.struct({"d": pa.string()})}),
        "dotted.name": pa.int64(),
        "nothing": pa.null(),
    }
)


def bind(expr: Expr) -> Expr:
    """Return an expression bound to the schema above."""
    return expr.bind(SCHEMA, table="mem:t")


def passing(expr: Expr, values: Sequence[Any], type_: pa.DataType) -> list[bool]:
    """Return which values of a column x pass a filter."""
    return [bool(keep) for keep in expr.mask(pa.table({"x": pa.array(values, type_)}))]


def stats(low: Sequence[Any], high: Sequence[Any], nulls: Sequence[int], type_: pa.DataType) -> ColumnRange:
    """Return the statistics of a column."""
    return ColumnRange(low=pa.array(low, type_), high=pa.array(high, type_), nulls=np.array(nulls, np.int64))


def possible_results(expr: Expr, type_: pa.DataType, ranges: ColumnRange | None, rows: Sequence[int]) -> list[str]:
    """Return the possible results of an expression on x for each row group, as letters of true, false and null."""
    bound = expr.bind(pa.schema({"x": type_}), table="mem:t")
    verdict = bound.prune({} if ranges is None else {"x": ranges}, np.array(rows, np.int64))
    letters = zip(verdict.can_true, verdict.can_false, verdict.can_null, strict=True)
    return ["".join(name for name, may in zip("tfn", each, strict=True) if may) for each in letters]


# ---------------------------------------------------------------------------------------------------------------------
# Building


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (col("x") == 3, "col('x') == 3"),
        (col("x") != -3, "col('x') != -3"),
        (3 < col("x"), "col('x') > 3"),  # noqa: SIM300
        (np.int64(3) <= col("x"), "col('x') >= 3"),
        (col("x") < np.float32(0.5), "col('x') < 0.5"),
        (col("x") <= col("y"), "col('x') <= col('y')"),
        (col("a")["b"]["c"] > 3, "col('a')['b']['c'] > 3"),
        (col("a.b") > 3, "col('a.b') > 3"),
        (col("x").isin([2, 1]), "col('x').isin([2, 1])"),
        (col("x").isin(np.array(["a", "b"])), "col('x').isin(['a', 'b'])"),
        (col("x").isin(pa.array([1, 2])), "col('x').isin([1, 2])"),
        (col("x").isin([]), "col('x').isin([])"),
        (col("x").is_null(), "col('x').is_null()"),
        (col("x").is_not_null(), "~col('x').is_null()"),
        (col("s").starts_with("a'b"), "col('s').starts_with(\"a'b\")"),
        (col("s").starts_with(b"ab"), "col('s').starts_with(b'ab')"),
        (col("x").between(1, 2), "(col('x') >= 1) & (col('x') <= 2)"),
        ((col("x") > 3) & col("s").isin(["a", "b"]), "(col('x') > 3) & col('s').isin(['a', 'b'])"),
        (col("a") & col("b") & col("c"), "col('a') & col('b') & col('c')"),
        (col("a") & (col("b") | ~col("c")), "col('a') & (col('b') | ~col('c'))"),
        (~(col("a") & col("b")) | ~~col("c"), "~(col('a') & col('b')) | ~~col('c')"),
        (~(col("x") > 3), "~(col('x') > 3)"),
        (col("x") > NAN, "col('x') > float('nan')"),
        (col("x") > -math.inf, "col('x') > float('-inf')"),
        (col("x") > Decimal("1.50"), "col('x') > Decimal('1.50')"),
        (col("x") > dt.date(2024, 1, 31), "col('x') > datetime.date(2024, 1, 31)"),
        (col("x") > np.datetime64("2024-01-31T12"), "col('x') > datetime.datetime(2024, 1, 31, 12, 0)"),
        (col("x") > np.timedelta64(3, "s"), "col('x') > datetime.timedelta(seconds=3)"),
        (col("x") > pd.Timedelta(seconds=3), "col('x') > datetime.timedelta(seconds=3)"),
        (col("x") > dt.time(12, 30), "col('x') > datetime.time(12, 30)"),
        (
            col("x") > pd.Timestamp("2024-01-31", tz="UTC"),
            "col('x') > datetime.datetime(2024, 1, 31, 0, 0, tzinfo=datetime.timezone.utc)",
        ),
        (in_split("id", 0, 2**64, seed=7), "in_split('id', 0, 18446744073709551616, seed=7)"),
    ],
)
def test_the_repr_is_python_that_rebuilds_the_expression(expr: Expr, text: str) -> None:
    """The repr is Python code that builds an equal expression."""
    names = {"col": col, "in_split": in_split, "Decimal": Decimal, "datetime": dt}
    again = eval(text, names)  # noqa: S307

    assert repr(expr) == text
    assert same(expr, again)
    assert repr(again) == text


def test_literals_of_subclasses_become_plain_python_values() -> None:
    """A literal of an enum or another subclass becomes a plain Python value, so that worker processes can load it."""

    class Colour(str, Enum):  # noqa: UP042
        RED = "red"

    class Number(int, Enum):
        ONE = 1

    class Clock(dt.time):
        pass

    assert repr(col("s") == Colour.RED) == "col('s') == 'red'"
    assert repr(col("s") == Number.ONE) == "col('s') == 1"
    assert repr(col("s") == Clock(12)) == "col('s') == datetime.time(12, 0)"


def test_columns_are_as_written_until_bound() -> None:
    """A dotted name is one name before binding, and afterwards the column that has the field."""
    expr = (col("a.b") > 3) & ~col("s").is_null() | (col("x") < col("tiny"))

    assert expr.columns == {"a.b", "s", "x", "tiny"}
    assert bind(expr).columns == {"a", "s", "x", "tiny"}
    assert bind(expr).paths == {"a.b", "s", "x", "tiny"}


@pytest.mark.parametrize(
    "expr",
    [
        (col("x") > 3) & col("s").isin(["a"]) | ~col("flag"),
        col("seen") < dt.datetime(2024, 1, 31, tzinfo=ZoneInfo("Asia/Tokyo")),
        col("a.b").between(1, 2) & (col("x") < col("tiny")),
        col("s").starts_with("a") | col("f").is_null() | in_split("s", 0, 2**63, seed=1),
    ],
)
def test_expressions_can_be_pickled(expr: Expr) -> None:
    """Pickle and cloudpickle preserve every expression and its mask, bound or not."""
    rows = SCHEMA.empty_table()
    for original in (expr, bind(expr)):
        for again in (pickle.loads(pickle.dumps(original)), cloudpickle.loads(cloudpickle.dumps(original))):  # noqa: S301
            assert repr(again) == repr(original)
            assert same(again, original)
            assert again.mask(rows).tolist() == []


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda: bool(col("x") > 3),
            (
                "col('x') > 3 is a filter and has no truth value. Use & | ~ instead of and, or, not, with parentheses "
                "around each comparison; isin([...]) instead of in; between(low, high) instead of low <= col <= high."
            ),
        ),
        (
            lambda: (col("x") > 3) & 3,
            ("& got 3; expected a condition. Put parentheses around each comparison: (col('x') > 3) & (col('y') < 2)."),
        ),
        (
            lambda: (col("x") > 3) | True,
            ("| got True; expected a condition. Put parentheses around each comparison: (col('x') > 3) | (col('y') < 2)."),
        ),
        (
            lambda: (col("x") > 3) == (col("y") > 3),
            "col('x') > 3 is a condition, and only columns compare. Use & | ~, or filters.same(one, two).",
        ),
        (
            lambda: (col("x") > 3) != 3,
            "col('x') > 3 is a condition, and only columns compare. Use & | ~, or filters.same(one, two).",
        ),
        (
            lambda: col("x") == None,  # noqa: E711
            "col('x') == None matches no row: null equals nothing. Use is_null() or is_not_null().",
        ),
        (
            lambda: col("x") < np.datetime64("NaT", "s"),
            ("col('x') < np.datetime64('NaT','s') matches no row: null equals nothing. Use is_null() or is_not_null()."),
        ),
        (
            lambda: col("x") < pd.NaT,
            "col('x') < NaT matches no row: null equals nothing. Use is_null() or is_not_null().",
        ),
        (
            lambda: col("x").isin([1, None]),
            "col('x') == None matches no row: null equals nothing. Use is_null() or is_not_null().",
        ),
        (
            lambda: col("x").isin([1.0, NAN]),
            "col('x') == nan matches no row. Remove NaN from isin; col('x') != col('x') matches it.",
        ),
        (lambda: col("x").isin("ab"), "col('x').isin() got 'ab'; expected a list, for example col('x').isin(['ab'])."),
        (lambda: col("x").isin(3), "col('x').isin() got 3; expected a list, for example col('x').isin([3])."),  # type: ignore[arg-type]
        (
            lambda: col("x") == [1, 2],
            (
                "col('x') == [1, 2] compares with no value; expected a bool, int, float, str, bytes, UUID, finite Decimal, "
                "date, datetime, time or timedelta, in whole microseconds. For several values use isin([...])."
            ),
        ),
        (
            lambda: col("x")[0],  # type: ignore[index]
            "col('x')[...] got 0; expected the name of a field, for example col('x')['a']; for in use isin([...]).",
        ),
        (
            lambda: 3 in col("x"),  # type: ignore[operator]
            "col('x')[...] got 0; expected the name of a field, for example col('x')['a']; for in use isin([...]).",
        ),
        (lambda: col(3), "col() got 3; expected the name of a column, for example col('x')."),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_expression_raises_when_written(write: Callable[[], object], message: str) -> None:
    """An invalid expression raises an error that says what to write instead."""
    with pytest.raises(FilterError) as caught:
        write()

    assert str(caught.value) == message


@pytest.mark.parametrize(
    "write",
    [
        lambda: col("x") > 3 & col("y") < 2,  # type: ignore[operator]
        lambda: 1 < col("x") < 3,
        lambda: (col("x") > 3) and (col("y") < 2),
        lambda: not col("x"),
        lambda: col("x") in [1, 2],
        lambda: col("x") == (col("y") > 3),
        lambda: col("x") == Decimal("NaN"),
        lambda: col("x") == pd.Timestamp("2024-01-31 00:00:00.000000001"),
        lambda: col("x") == np.datetime64("2024-01-31T00:00:00.000000001"),
        lambda: col("x") == pd.Timedelta(nanoseconds=1),
        lambda: col("x") == np.array([1, 2]),
        lambda: col("x").isin(col("y")),  # type: ignore[arg-type]
        lambda: hash(frozenset([1])) and (col("a") or col("b")),
    ],
)
def test_misused_python_operators_raise(write: Callable[[], object]) -> None:
    """Expressions that Python would silently turn into another filter raise an error."""
    with pytest.raises(FilterError):
        write()


def test_expressions_have_no_hash() -> None:
    """Expressions cannot be keys, because == builds a filter."""
    for expr in (col("x"), col("x") > 3, ~col("x")):
        with pytest.raises(TypeError):
            hash(expr)


# ---------------------------------------------------------------------------------------------------------------------
# Tuples


@pytest.mark.parametrize(
    ("dnf", "text"),
    [
        (("a", "=", 3), "col('a') == 3"),
        ([("a", "==", 3)], "col('a') == 3"),
        ([("a", ">", 3), ("b", "in", {"x"})], "(col('a') > 3) & col('b').isin(['x'])"),
        ([[("a", "<", 3)], [("b", "!=", 1), ("c", "<=", 2)]], "(col('a') < 3) | ((col('b') != 1) & (col('c') <= 2))"),
        ([["a", ">=", 3]], "col('a') >= 3"),
        ([("a", "not in", [1, 2])], "~col('a').isin([1, 2])"),
        ([("a", "is null", None)], "col('a').is_null()"),
        ([("a", "is null")], "col('a').is_null()"),
        ([("a.b", "is not null")], "~col('a.b').is_null()"),
    ],
)
def test_tuples_have_the_meaning_of_pyarrow(dnf: Sequence[Any], text: str) -> None:
    """A list of tuples is joined by and, a list of lists by or."""
    assert repr(from_tuples(dnf)) == text


@pytest.mark.parametrize(
    ("dnf", "message"),
    [
        (
            ("a", "like", 3),
            (
                "('a', 'like', 3) is not a comparison; expected (column, op, value), with op one of: "
                "=, ==, !=, <, <=, >, >=, in, not in, is null, is not null."
            ),
        ),
        (
            [("a", "=", 3), 4],
            (
                "4 is not a comparison; expected (column, op, value), with op one of: "
                "=, ==, !=, <, <=, >, >=, in, not in, is null, is not null."
            ),
        ),
        ([], "[] is not a filter; expected (column, op, value), a list of those, or a list of such lists."),
        (
            "a > 3",
            "'a > 3' is text; expected an expression of columns. Write it as penstock.col('a') > 3.",
        ),
        (
            "day = 'mon'",
            "\"day = 'mon'\" is text; expected an expression of columns. Write it as penstock.col('day') == 'mon'.",
        ),
        (
            "a > 3 and b < 4",
            "'a > 3 and b < 4' is text; expected an expression of columns. Write it like penstock.col('x') > 3, "
            "joined by & and |.",
        ),
        (
            len,
            "len is a function; expected an expression of columns, with which files and row groups can be "
            "skipped, for example penstock.col('x') > 3. To filter with a function of batches use "
            '.batch("row_group").map(function).',
        ),
        (("a", "="), "col('a') == None matches no row: null equals nothing. Use is_null() or is_not_null()."),
    ],
)
def test_invalid_tuples_raise(dnf: Sequence[Any], message: str) -> None:
    """The error lists the operators or the valid forms."""
    with pytest.raises(FilterError) as caught:
        from_tuples(dnf)

    assert str(caught.value) == message


def test_a_thousand_alternatives_are_one_node() -> None:
    """Long filters do not nest, so they do not exceed the recursion limit."""
    expr = from_tuples([[("x", "=", number)] for number in range(3000)])

    assert passing(pickle.loads(pickle.dumps(expr)), [2999, 3000], pa.int64()) == [True, False]  # noqa: S301


# ---------------------------------------------------------------------------------------------------------------------
# Describing


def test_descriptions_distinguish_types() -> None:
    """Descriptions, which are part of fingerprints, are JSON and differ for 3, "3" and 3.0."""
    literals = [
        True,
        3,
        3.0,
        "3",
        b"3",
        Decimal(3),
        dt.date(2024, 1, 31),
        dt.datetime(2024, 1, 31, tzinfo=UTC),
        dt.time(3),
        dt.timedelta(seconds=3),
        NAN,
    ]
    described = [(col("x") == literal).describe() for literal in literals]

    assert [each[2] for each in described] == [
        ["bool", True],
        ["int", 3],
        ["float", "3.0"],
        ["str", "3"],
        ["bytes", "33"],
        ["Decimal", "3"],
        ["date", "2024-01-31"],
        ["datetime", "2024-01-31T00:00:00+00:00"],
        ["time", "03:00:00"],
        ["timedelta", "0:00:03"],
        ["float", "nan"],
    ]
    assert json.loads(json.dumps(described)) == described
    assert len({json.dumps(each) for each in described}) == len(described)


@pytest.mark.parametrize(
    ("expr", "described"),
    [
        (col("a")["b"] < 1, ["<", ["col", "a", "b"], ["int", 1]]),
        (col("x") == col("y"), ["==", ["col", "x"], ["col", "y"]]),
        (col("x").isin([10, 2, "a", 2]), ["isin", ["col", "x"], ["int", 10], ["int", 2], ["str", "a"]]),
        (~col("x").is_null(), ["not", ["is_null", ["col", "x"]]]),
        (col("b") | col("a") & col("c"), ["or", ["col", "b"], ["and", ["col", "a"], ["col", "c"]]]),
        (col("s").starts_with("a"), ["starts_with", ["col", "s"], ["str", "a"]]),
        (in_split("x", 0, 5, seed=7), ["in_split", ["col", "x"], ["int", 0], ["int", 5], ["int", 7]]),
    ],
)
def test_descriptions_are_stable(expr: Expr, described: list[object]) -> None:
    """Operands keep their order; only the values of isin are sorted, each once."""
    assert expr.describe() == described


# ---------------------------------------------------------------------------------------------------------------------
# Binding


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (col("flagg"), "Column 'flagg' is not in mem:t. Columns: {names}. Did you mean 'flag'?"),
        (col("a.x") == 3, "Column 'a.x' is not in mem:t. Columns: a.b, a.c. Did you mean 'a.c'?"),
        (col("a")["c"]["dd"] == "d", "Column 'a.c.dd' is not in mem:t. Columns: a.c.d. Did you mean 'a.c.d'?"),
        (col("x")["b"] == 3, "Column 'x.b' is not in mem:t. Columns: {names}. Print `ds.schema` to see their types."),
        (col("q.b") == 3, "Column 'q.b' is not in mem:t. Columns: {names}. Print `ds.schema` to see their types."),
    ],
)
def test_an_unknown_column_raises(expr: Expr, message: str) -> None:
    """The error names the path, the columns or fields at that level, and the nearest name."""
    with pytest.raises(ColumnNotFoundError) as caught:
        bind(expr)

    assert str(caught.value) == message.format(names=", ".join(SCHEMA.names))


ADD_ZONE = "Its values have a zone: use one too, such as datetime(2024, 1, 31, tzinfo=UTC) or '2024-01-31T00:00Z'."
DROP_ZONE = "Its values have no zone: use none, such as datetime(2024, 1, 31) or '2024-01-31'."
OTHER = "Only is_null() and is_not_null() work on this type; a field of a struct is col('a')['b']."
NAIVE = dt.datetime(2024, 1, 31)  # noqa: DTZ001
AWARE = dt.datetime(2024, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (col("x") == "abc", "Column 'x' has type int64, which does not compare with 'abc'. Use a number, such as 3."),
        (col("x") == True, "Column 'x' has type int64, which does not compare with True. Use a number, such as 3."),  # noqa: E712
        (col("x").isin([1, "a"]), "Column 'x' has type int64, which does not compare with 'a'. Use a number, such as 3."),
        (col("s") == 3, "Column 's' has type string, which does not compare with 3. Use a str, such as 'a'."),
        (col("s") == b"a", "Column 's' has type string, which does not compare with b'a'. Use a str, such as 'a'."),
        (col("raw") == "a", "Column 'raw' has type binary, which does not compare with 'a'. Use bytes, such as b'a'."),
        (col("flag") == 1, "Column 'flag' has type bool, which does not compare with 1. Use True or False."),
        (col("f") > "1", "Column 'f' has type double, which does not compare with '1'. Use a number, such as 0.5."),
        (
            col("price") > "1",
            "Column 'price' has type decimal128(10, 2), which does not compare with '1'. Use a number, such as Decimal('0.5').",
        ),
        (
            col("day") > 3,
            "Column 'day' has type date32[day], which does not compare with 3. Use a date, or a string such as '2024-01-31'.",
        ),
        (
            col("day") > "yesterday",
            (
                "Column 'day' has type date32[day], which does not compare with 'yesterday'. "
                "Use a date, or a string such as '2024-01-31'."
            ),
        ),
        (col("day") > AWARE, f"Column 'day' has type date32[day], which does not compare with {AWARE!r}. {DROP_ZONE}"),
        (col("at") > AWARE, f"Column 'at' has type timestamp[us], which does not compare with {AWARE!r}. {DROP_ZONE}"),
        (
            col("at") > "2024-01-31T00:00Z",
            f"Column 'at' has type timestamp[us], which does not compare with '2024-01-31T00:00Z'. {DROP_ZONE}",
        ),
        (
            col("at") > "2024-01-31T00:00:00.000000001",
            (
                "Column 'at' has type timestamp[us], which does not compare with '2024-01-31T00:00:00.000000001'. "
                "Use a datetime, or a string such as "
                "'2024-01-31 12:30'."
            ),
        ),
        (
            col("seen") > NAIVE,
            f"Column 'seen' has type timestamp[ms, tz=Europe/Paris], which does not compare with {NAIVE!r}. {ADD_ZONE}",
        ),
        (
            col("seen") > "2024-01-31",
            f"Column 'seen' has type timestamp[ms, tz=Europe/Paris], which does not compare with '2024-01-31'. {ADD_ZONE}",
        ),
        (
            col("clock") > "25:00",
            (
                "Column 'clock' has type time64[us], which does not compare with '25:00'. "
                "Use a time without zone, or a string such as '12:30'."
            ),
        ),
        (
            col("clock") > dt.time(12, tzinfo=UTC),
            (
                f"Column 'clock' has type time64[us], which does not compare with {dt.time(12, tzinfo=UTC)!r}. "
                "Use a time without zone, or a string such "
                f"as '12:30'."
            ),
        ),
        (col("lap") > 3, "Column 'lap' has type duration[s], which does not compare with 3. Use a timedelta."),
        (col("a") > 3, f"Column 'a' has type {SCHEMA.field('a').type}, which does not compare with 3. {OTHER}"),
        (col("tags") == "a", f"Column 'tags' has type {SCHEMA.field('tags').type}, which does not compare with 'a'. {OTHER}"),
        (
            col("x").starts_with("a"),
            (
                "Column 'x' has type int64, which does not compare with 'a'. "
                "starts_with() takes a str for a string column, bytes for a binary one."
            ),
        ),
        (
            col("s").starts_with(b"a"),
            (
                "Column 's' has type string, which does not compare with b'a'. "
                "starts_with() takes a str for a string column, bytes for a binary one."
            ),
        ),
        (
            col("s").starts_with(3),  # type: ignore[arg-type]
            (
                "Column 's' has type string, which does not compare with 3. "
                "starts_with() takes a str for a string column, bytes for a binary one."
            ),
        ),
        (col("x") & col("flag"), "Column 'x' has type int64, which is not a condition. Write col('x') == ..."),
        (
            col("x") < col("s"),
            ("Columns 'x' (int64) and 's' (string) do not compare. Compare columns of one type, or a column with a literal."),
        ),
        (
            col("tags") == col("tags"),
            (
                "Columns 'tags' ({0}) and 'tags' ({0}) do not compare. ".format(SCHEMA.field("tags").type)
                + "Compare columns of one type, or a column with a literal."
            ),
        ),
        (
            in_split("tags", 0, 1, seed=0),
            (
                f"Column 'tags' has type {SCHEMA.field('tags').type}, which has no stable hash. "
                "Split by an id: text or a number."
            ),
        ),
    ],
)
def test_a_value_that_does_not_fit_the_columns_type_raises(expr: Expr, message: str) -> None:
    """The error names the column, its type, the value, and what to use instead."""
    with pytest.raises(FilterError) as caught:
        bind(expr)

    assert str(caught.value) == message


def test_a_null_prefix_raises_when_written() -> None:
    """A prefix of None matches no row, and raises an error."""
    with pytest.raises(FilterError, match="matches no row"):
        col("s").starts_with(None)  # type: ignore[arg-type]


def test_a_column_with_a_dot_in_its_name_comes_before_a_field() -> None:
    """Dots separate fields only if no column has the name as written."""
    table = pa.table({"a.b": [1, 2], "a": [{"b": 10}, {"b": 20}]})
    group = np.array([2], np.int64)
    ranges = {"a.b": stats([1], [2], [0], pa.int64())}
    field = (col("a")["b"] > 15).bind(table.schema, table="mem:t")

    assert (col("a.b") > 1).mask(table).tolist() == [False, True]
    assert field.mask(table).tolist() == [False, True]
    assert field.prune(ranges, group).may_keep.tolist() == [True]  # the statistics are of column 'a.b', not of the field
    assert repr(bind(col("a.c.d") == "x")) == "col('a')['c']['d'] == 'x'"
    assert repr(bind(col("dotted.name") == 1)) == "col('dotted.name') == 1"


def test_binding_twice_is_binding_once() -> None:
    """Binding a bound expression again gives the same expression."""
    expr = (col("a.b") > 3) & col("s").starts_with("x") & (col("tiny") < col("huge"))
    again = bind(bind(expr))

    assert same(again, bind(expr))
    assert again.mask(SCHEMA.empty_table()).tolist() == []


# ---------------------------------------------------------------------------------------------------------------------
# Rows


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (col("x") < 1000, [True, True, True, False]),
        (col("x") >= -1000, [True, True, True, False]),
        (col("x") > 1000, [False, False, False, False]),
        (col("x") < -1000, [False, False, False, False]),
        (col("x") == 1000, [False, False, False, False]),
        (col("x") != 1000, [True, True, True, False]),
        (col("x").isin([1000, 3]), [False, True, False, False]),
        (col("x") < 3.5, [True, True, False, False]),
        (col("x") <= 3.5, [True, True, False, False]),
        (col("x") > 3.5, [False, False, True, False]),
        (col("x") >= 3.5, [False, False, True, False]),
        (col("x") == 3.5, [False, False, False, False]),
        (col("x") != 3.5, [True, True, True, False]),
        (col("x") == 3.0, [False, True, False, False]),
        (col("x") >= Decimal("2.9"), [False, True, True, False]),
        (col("x") < math.inf, [True, True, True, False]),
        (col("x") > -math.inf, [True, True, True, False]),
        (col("x") < NAN, [False, False, False, False]),
        (col("x") != NAN, [True, True, True, False]),
        (~(col("x") == NAN), [True, True, True, False]),
        (col("x") < 10**400, [True, True, True, False]),
    ],
)
def test_an_integer_column_compares_exactly_with_any_number(expr: Expr, expected: list[bool]) -> None:
    """Comparisons neither overflow nor round; null never passes."""
    assert passing(expr, [-128, 3, 127, None], pa.int8()) == expected


def test_large_integers_keep_all_their_bits() -> None:
    """Integers compare exactly beyond 2**53, where floats have gaps, and beyond 2**63, where int64 ends."""
    near = [2**53, 2**53 + 1, 2**53 + 2]

    assert passing(col("x") == 2**53 + 1, near, pa.int64()) == [False, True, False]
    assert passing(col("x") > float(2**53), near, pa.int64()) == [False, True, True]
    assert passing(col("x").isin([2**53 + 1]), near, pa.int64()) == [False, True, False]
    assert passing(col("x") > 2**63, [2**63, 2**63 + 1, 2**64 - 1], pa.uint64()) == [False, True, True]
    assert passing(col("x") < float(2**63), [2**63 - 1], pa.int64()) == [True]
    assert passing(col("x") >= -1, [0, 2**64 - 1], pa.uint64()) == [True, True]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (col("x") > 1, [False, False, True, False, False]),
        (col("x") == 0, [True, True, False, False, False]),
        (col("x").isin([0]), [True, True, False, False, False]),
        (col("x").isin([0.0, 1.5, -3]), [True, True, True, False, False]),
        (col("x") == NAN, [False, False, False, False, False]),
        (col("x") != NAN, [True, True, True, True, False]),
        (col("x") != 0, [False, False, True, True, False]),
        (~(col("x") > 1), [True, True, False, True, False]),
        (col("x") != col("x"), [False, False, False, True, False]),
        (col("x") < 10**400, [True, True, True, False, False]),
        (col("x") > -(10**400), [True, True, True, False, False]),
        (col("x") == Decimal("1.5"), [False, False, True, False, False]),
        (col("x").is_null(), [False, False, False, False, True]),
    ],
)
def test_a_float_column_follows_ieee(expr: Expr, expected: list[bool]) -> None:
    """Zeros are equal. NaN compares false except by !=, and is not null."""
    assert passing(expr, [0.0, -0.0, 1.5, NAN, None], pa.float64()) == expected


def test_integers_between_two_floats_compare_exactly() -> None:
    """An integer without an exact float lies between two floats; a float literal is rounded to the column's type."""
    odd = 2**53 + 1

    assert passing(col("x") == odd, [float(odd)], pa.float64()) == [False]
    assert passing(col("x") < odd, [float(2**53), float(2**53 + 2)], pa.float64()) == [True, False]
    assert passing(col("x") >= 2**53 + 3, [float(2**53 + 2), float(2**53 + 4)], pa.float64()) == [False, True]
    assert passing(col("x") == 0.1, [0.1, 0.2], pa.float32()) == [True, False]
    assert passing(col("x").isin([0.1]), [np.float16(0.5), np.float16(0.25)], pa.float16()) == [False, False]
    assert passing(col("x") <= 1e300, [1.0, math.inf], pa.float32()) == [True, False]
    assert passing(col("x") >= math.inf, [1.0, math.inf], pa.float32()) == [False, True]


PRICES = [Decimal("-1.00"), Decimal("0.10"), Decimal("99999999.99"), None]


@pytest.mark.parametrize("type_", [pa.float16(), pa.dictionary(pa.int8(), pa.float16())])
def test_a_float_literal_is_rounded_to_float16(type_: pa.DataType) -> None:
    """A float literal is rounded to the nearest float16; one that is too large does not become infinity."""
    values = [np.float16(0.1), np.float16(2), np.float16("inf"), np.float16("nan"), None]
    stored = pa.array(values, pa.float16())
    rows = pa.table(
        {
            "x": stored
            if type_ == stored.type
            else pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, None], pa.int8()), stored)
        }
    )

    assert (col("x") == 0.1).mask(rows).tolist() == [True, False, False, False, False]
    assert (col("x") < 0.1).mask(rows).tolist() == [False] * 5
    assert (col("x") != 0.1).mask(rows).tolist() == [False, True, True, True, False]
    assert col("x").isin([0.1, 2]).mask(rows).tolist() == [True, True, False, False, False]
    assert (col("x") > 70_000.0).mask(rows).tolist() == [False, False, True, False, False]
    assert (col("x") == 70_000.0).mask(rows).tolist() == [False] * 5
    assert (col("x") == math.inf).mask(rows).tolist() == [False, False, True, False, False]
    assert (col("x") > Decimal("0.1")).mask(rows).tolist() == [float(np.float16(0.1)) > 0.1, True, True, False, False]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (col("x") == 0.1, [False, True, False, False]),
        (col("x") == Decimal("0.1"), [False, True, False, False]),
        (col("x") == -1, [True, False, False, False]),
        (col("x") > Decimal("0.099"), [False, True, True, False]),
        (col("x") < Decimal("0.101"), [True, True, False, False]),
        (col("x") <= 10**20, [True, True, True, False]),
        (col("x") >= math.inf, [False, False, False, False]),
        (col("x").isin([0.1, Decimal("0.105")]), [False, True, False, False]),
    ],
)
@pytest.mark.parametrize("type_", [pa.decimal128(10, 2), pa.decimal64(10, 2), pa.decimal256(50, 2)], ids=str)
def test_a_decimal_column_compares_exactly(expr: Expr, expected: list[bool], type_: pa.DataType) -> None:
    """A decimal column compares exactly; a float literal means the decimal number that it prints as."""
    assert passing(expr, PRICES, type_) == expected


def test_a_decimal_column_of_negative_scale_compares_exactly() -> None:
    """In a column of hundreds, 150 lies between 100 and 200."""
    assert passing(col("x") > 150, [Decimal(100), Decimal(200)], pa.decimal128(5, -2)) == [False, True]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_strings_compare_by_code_points(type_: pa.DataType) -> None:
    """Strings of every Arrow layout compare by code points."""
    values = ["", "a", "ab", "b", "é", None]

    assert passing(col("x") >= "ab", values, type_) == [False, False, True, True, True, False]
    assert passing(col("x").isin(["é", "a"]), values, type_) == [False, True, False, False, True, False]
    assert passing(col("x").starts_with("a"), values, type_) == [False, True, True, False, False, False]
    assert passing(col("x").starts_with(""), values, type_) == [True, True, True, True, True, False]
    assert passing(col("x").starts_with("\U0010ffff"), values, type_) == [False] * 6


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)], ids=str)
def test_bytes_compare_by_bytes(type_: pa.DataType) -> None:
    """Bytes of every Arrow layout compare alike; a prefix of 0xff bytes has no upper bound."""
    values = [b"\x00a", b"ab", b"\xff\xff", None]

    assert passing(col("x") > b"a", values, type_) == [False, True, True, False]
    assert passing(col("x").starts_with(b"\xff"), values, type_) == [False, False, True, False]
    assert passing(col("x").starts_with(b"\x00"), values, type_) == [True, False, False, False]


def test_booleans_are_conditions() -> None:
    """A boolean column is a condition, and compares with True and False."""
    values = [True, False, None]

    assert passing(col("x"), values, pa.bool_()) == [True, False, False]
    assert passing(~col("x"), values, pa.bool_()) == [False, True, False]
    assert passing(col("x") == False, values, pa.bool_()) == [False, True, False]  # noqa: E712
    assert passing(col("x").isin([True]), values, pa.bool_()) == [True, False, False]
    assert passing(col("x") < True, values, pa.bool_()) == [False, True, False]


MIDNIGHT = dt.datetime(2024, 1, 31)  # noqa: DTZ001


@pytest.mark.parametrize("type_", [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")], ids=str)
@pytest.mark.parametrize("literal", [MIDNIGHT, dt.date(2024, 1, 31), "2024-01-31", "2024-01-31T00:00", pd.Timestamp(MIDNIGHT)])
def test_timestamps_compare_with_datetimes_and_dates(type_: pa.DataType, literal: object) -> None:
    """Timestamps of every unit compare with datetimes, with dates as midnight, and with ISO strings."""
    second = dt.timedelta(seconds=1)
    values = [MIDNIGHT - second, MIDNIGHT, MIDNIGHT + second, None]

    assert passing(col("x") == literal, values, type_) == [False, True, False, False]
    assert passing(col("x") > literal, values, type_) == [False, False, True, False]
    assert passing(col("x").isin([literal]), values, type_) == [False, True, False, False]


def test_datetimes_between_two_units_compare_exactly() -> None:
    """Half a second lies between two seconds, and a datetime beyond the range of a unit lies beyond all its values."""
    half = MIDNIGHT + dt.timedelta(milliseconds=500)
    values = [MIDNIGHT, MIDNIGHT + dt.timedelta(seconds=1)]

    assert passing(col("x") < half, values, pa.timestamp("s")) == [True, False]
    assert passing(col("x") == half, values, pa.timestamp("s")) == [False, False]
    assert passing(col("x") < dt.datetime.max, values, pa.timestamp("ns")) == [True, True]  # noqa: DTZ901
    assert passing(col("x") > dt.datetime.min, values, pa.timestamp("ns")) == [True, True]  # noqa: DTZ901


def test_datetimes_of_other_time_zones_compare_as_instants() -> None:
    """A time zone changes how an instant is written, not the instant."""
    values = [dt.datetime(2024, 7, 1, 12, tzinfo=UTC), dt.datetime(2024, 7, 1, 13, tzinfo=UTC), None]
    type_ = pa.timestamp("us", "America/New_York")

    for literal in ("2024-07-01T14:00+02:00", dt.datetime(2024, 7, 1, 14, tzinfo=ZoneInfo("Europe/Paris"))):
        assert passing(col("x") == literal, values, type_) == [True, False, False]
        assert passing(col("x") > literal, values, type_) == [False, True, False]


@pytest.mark.parametrize("type_", [pa.date32(), pa.date64()], ids=str)
def test_dates_compare_with_dates_and_datetimes(type_: pa.DataType) -> None:
    """Noon lies after its own date and before the next."""
    values = [dt.date(2024, 1, 30), dt.date(2024, 1, 31), None]

    assert passing(col("x") == dt.date(2024, 1, 31), values, type_) == [False, True, False]
    assert passing(col("x") <= "2024-01-30", values, type_) == [True, False, False]
    assert passing(col("x") < dt.datetime(2024, 1, 30, 12), values, type_) == [True, False, False]  # noqa: DTZ001
    assert passing(col("x") == dt.datetime(2024, 1, 30, 12), values, type_) == [False, False, False]  # noqa: DTZ001


@pytest.mark.parametrize("type_", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")], ids=str)
def test_times_and_durations_compare(type_: pa.DataType) -> None:
    """Times compare with ISO strings; durations compare with timedeltas."""
    values = [dt.time(12), dt.time(12, 30), None]
    laps = [dt.timedelta(seconds=1), dt.timedelta(seconds=3), None]

    assert passing(col("x") >= "12:30", values, type_) == [False, True, False]
    assert passing(col("x") < dt.time(12, 15), values, type_) == [True, False, False]
    assert passing(col("x") > dt.timedelta(seconds=1.5), laps, pa.duration("s")) == [False, True, False]
    assert passing(col("x") == np.timedelta64(1, "s"), laps, pa.duration("ns")) == [True, False, False]


def test_dictionaries_behave_as_their_values() -> None:
    """Chunks with different dictionaries, and nulls inside a dictionary, make no difference."""
    inside = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    other = pa.array(["b", "a"]).dictionary_encode().cast(inside.type)
    table = pa.table({"x": pa.chunked_array([inside, other])})

    assert (col("x") == "a").mask(table).tolist() == [True, False, False, False, True]
    assert col("x").is_null().mask(table).tolist() == [False, True, True, False, False]
    assert (col("x") >= "a").bind(table.schema, table="mem:t").mask(table).tolist() == [True, False, False, True, True]


def test_extension_types_behave_as_their_storage() -> None:
    """A UUID column compares with UUIDs, and with their sixteen bytes."""
    stored = pa.array([b"0123456789abcdef", None], pa.binary(16))
    table = pa.table({"x": pa.ExtensionArray.from_storage(pa.uuid(), stored)})

    assert (col("x") == b"0123456789abcdef").mask(table).tolist() == [True, False]
    assert (col("x") == UUID(bytes=b"0123456789abcdef")).mask(table).tolist() == [True, False]
    assert repr(col("x").isin([UUID(int=0)])) == repr(col("x").isin([bytes(16)]))


def test_null_columns_pass_only_is_null() -> None:
    """A column of type null, as pandas writes an empty one, is valid in every filter."""
    for expr in (col("x") == 3, col("x") != "a", col("x").isin([1, 2]), col("x").starts_with("a"), col("x"), ~col("x")):
        assert passing(expr, [None, None], pa.null()) == [False, False]
    assert passing(col("x").is_null(), [None], pa.null()) == [True]
    assert passing(col("x") == col("x"), [None], pa.null()) == [False]


def test_is_null_takes_any_column() -> None:
    """`is_null` works on lists and structs too."""
    table = pa.table({"x": [[1], None], "y": [{"a": 1}, None]})

    assert col("x").is_null().mask(table).tolist() == [False, True]
    assert col("y").is_not_null().mask(table).tolist() == [True, False]


def test_fields_of_null_structs_are_null() -> None:
    """A field is null where its struct is null, in every chunk."""
    struct = pa.StructArray.from_arrays([pa.array([1, 2, 3])], ["b"], mask=pa.array([False, True, False]))
    table = pa.table({"a": pa.chunked_array([struct, struct.slice(1)])})

    assert col("a.b").is_null().mask(table).tolist() == [False, True, False, True, False]
    assert (col("a")["b"] >= 1).mask(table).tolist() == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("one", "two", "types"),
    [
        ([1, 2, None, 4], [2, 2, 2, None], (pa.int8(), pa.int64())),
        ([-1, 2**63 - 1, None, 4], [2**64 - 1, 2**63 - 1, 2, None], (pa.int64(), pa.uint64())),
        ([1, 2, None, 4], [1.5, 2.0, 2.0, None], (pa.int32(), pa.float32())),
        ([1.0, 0.0, None, NAN], [1.5, -0.0, 2.0, None], (pa.float32(), pa.float64())),
        ([Decimal("1.5"), Decimal(2), None, Decimal(4)], [2, 2, 2, None], (pa.decimal128(5, 1), pa.int64())),
        ([Decimal("1.5"), Decimal(2), None, Decimal(4)], [Decimal("1.55"), Decimal(2), Decimal(2), None],
         (pa.decimal128(5, 1), pa.decimal128(5, 2))),
        (["a", "b", None, "c"], ["b", "b", "b", None], (pa.string(), pa.string_view())),
        ([b"a", b"b", None, b"c"], [b"b", b"b", b"b", None], (pa.binary(), pa.binary(1))),
        ([False, True, None, True], [True, True, True, None], (pa.bool_(), pa.bool_())),
    ],
)  # fmt: skip
def test_columns_compare_with_columns(one: list[Any], two: list[Any], types: tuple[pa.DataType, pa.DataType]) -> None:
    """Types of one family compare exactly: the first row is less, the second is equal, the others are null."""
    table = pa.table({"p": pa.array(one, types[0]), "q": pa.array(two, types[1])})

    assert (col("p") < col("q")).mask(table).tolist() == [True, False, False, False]
    assert (col("q") >= col("p")).mask(table).tolist() == [True, True, False, False]
    assert (col("p") == col("q")).mask(table).tolist() == [False, True, False, False]
    assert (col("p") != col("q")).mask(table).tolist() == [True, False, False, False]


def test_a_comparison_that_would_round_raises() -> None:
    """Comparing an int64 with a float raises an error if the int64 has no exact float."""
    table = pa.table({"p": [2**53 + 1], "q": [1.0]})

    with pytest.raises(FilterError) as caught:
        (col("p") > col("q")).mask(table)

    assert str(caught.value).startswith("col('p') > col('q') cannot be evaluated on the rows: Integer value")
    assert str(caught.value).endswith("Cast the columns to one type.")


def test_masks_support_every_form_of_rows() -> None:
    """Rows may be empty tables, record batches or chunks, with columns in another order or type."""
    expr = ((col("x") > 1) & (col("s") != "b")).bind(pa.schema({"x": pa.int64(), "s": pa.string()}), table="mem:t")
    batch = pa.record_batch({"s": pa.array(["a", "b", "c"]).dictionary_encode(), "x": pa.array([1, 2, 3], pa.int8())})
    chunked = pa.table({"x": pa.chunked_array([[1], [2, 3]]), "s": pa.chunked_array([["a", "b"], ["c"]])})

    assert expr.mask(batch).tolist() == expr.mask(chunked).tolist() == [False, False, True]
    for nothing in (batch.slice(0, 0), chunked.slice(0, 0), chunked.schema.empty_table()):
        found = expr.mask(nothing)
        assert (found.dtype, found.shape) == (np.dtype(np.bool_), (0,))


def test_rows_without_a_bound_column_raise() -> None:
    """A mask of rows that lack a column of the filter raises an error."""
    with pytest.raises(ColumnNotFoundError) as caught:
        bind(col("x") > 3).mask(pa.table({"y": [1]}))

    assert str(caught.value) == ("Column 'x' is not in the rows read. Columns: y. Print `ds.schema` to see their types.")


# ---------------------------------------------------------------------------------------------------------------------
# Splits


def test_splits_partition_the_rows() -> None:
    """Adjacent ranges put every row, null too, in exactly one split, by its stable hash."""
    values = pa.chunked_array([pa.array([f"user-{number}" for number in range(500)]), pa.array([None, ""])])
    table = pa.table({"id": values})
    edges = [0, 2**62, 2**62, 2**63 + 1, 2**64, 2**64]
    masks = [in_split("id", low, high, seed=3).mask(table) for low, high in pairwise(edges)]

    assert np.sum(masks, axis=0).tolist() == [1] * 502
    assert [int(mask.sum()) for mask in masks[1::3]] == [0, 0]
    assert masks[0].tolist() == (stable_hash(values, 3) < 2**62).tolist()


def test_splits_are_not_pruned_by_statistics() -> None:
    """Any row may be in a split or not, and the result is never null; row groups without rows have no result."""
    ranges = stats([1, 1, 1], [1, 1, 1], [0, 5, 0], pa.int64())

    assert possible_results(in_split("x", 0, 2**63, seed=0), pa.int64(), ranges, [5, 5, 0]) == ["tf", "tf", ""]
    assert possible_results(~in_split("x", 0, 2**63, seed=0), pa.int64(), None, [5, 0]) == ["tf", ""]


@pytest.mark.parametrize(("low", "high"), [(-1, 5), (5, 4), (0, 2**64 + 1)])
def test_an_invalid_split_range_raises(low: int, high: int) -> None:
    """The error gives both ends of the range."""
    with pytest.raises(ArgumentError) as caught:
        in_split("id", low, high, seed=0)

    assert str(caught.value) == (f"in_split() got low={low}, high={high}; expected 0 <= low <= high <= 2**64.")


# ---------------------------------------------------------------------------------------------------------------------
# Statistics

NUMBERS = stats([1, 5, 3, None, 1, None, 1, 3], [3, 9, 3, 9, None, None, 9, 3], [0, 0, 0, 0, 0, 4, -1, 2], pa.int64())
ROWS = [4, 4, 4, 4, 4, 4, 4, 4]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (col("x") < 4, ["t", "f", "t", "tf", "tf", "n", "tfn", "tn"]),
        (col("x") <= 1, ["tf", "f", "f", "tf", "tf", "n", "tfn", "fn"]),
        (col("x") > 3, ["f", "t", "f", "tf", "tf", "n", "tfn", "fn"]),
        (col("x") >= 5, ["f", "t", "f", "tf", "tf", "n", "tfn", "fn"]),
        (col("x") == 3, ["tf", "f", "t", "tf", "tf", "n", "tfn", "tn"]),
        (col("x") != 3, ["tf", "t", "f", "tf", "tf", "n", "tfn", "fn"]),
        (col("x") > 10, ["f", "f", "f", "f", "tf", "n", "fn", "fn"]),
        (col("x").isin([4, 3, 99]), ["tf", "f", "t", "tf", "tf", "n", "tfn", "tn"]),
        (col("x").isin([4, 0]), ["f", "f", "f", "tf", "tf", "n", "tfn", "fn"]),
        (col("x").isin([]), ["f", "f", "f", "f", "f", "n", "fn", "fn"]),
        (col("x").between(4, 4), ["f", "f", "f", "tf", "tf", "n", "tfn", "fn"]),
        (col("x").is_null(), ["f", "f", "f", "f", "f", "t", "tf", "tf"]),
        (col("x").is_not_null(), ["t", "t", "t", "t", "t", "f", "tf", "tf"]),
        (col("x") < 2.5, ["tf", "f", "f", "tf", "tf", "n", "tfn", "fn"]),
        (col("x") != 2.5, ["t", "t", "t", "t", "t", "n", "tn", "tn"]),
        (~((col("x") < 4) | (col("x") > 4)), ["f", "f", "f", "tf", "tf", "n", "tfn", "fn"]),
    ],
)
def test_bounds_decide_the_possible_results(expr: Expr, expected: list[str]) -> None:
    """Bounds decide results: 1-3, 5-9, 3-3, ?-9, 1-?, all null, 1-9 with unknown nulls, and 3-3 with nulls."""
    assert possible_results(expr, pa.int64(), NUMBERS, ROWS) == expected


def test_missing_statistics_prove_nothing() -> None:
    """A column without statistics may have any result, unless the row group has no rows."""
    for expr in (col("x") == 3, col("x").isin([3]), col("x") < col("x")):
        assert possible_results(expr, pa.int64(), None, [4, -1, 0]) == ["tfn", "tfn", ""]


def test_unknown_row_counts_prove_nothing() -> None:
    """A row count of -1 is unknown; an equal null count, unknown too, does not mean that all rows are null."""
    ranges = stats([1, None], [3, None], [0, -1], pa.int64())

    assert possible_results(col("x") < 9, pa.int64(), ranges, [-1, -1]) == ["t", "tfn"]


def test_bounds_do_not_exclude_nan() -> None:
    """A float column may have NaN whatever its bounds: NaN makes comparisons false, and != true."""
    ranges = stats([1.0, 2.0, NAN], [3.0, 2.0, NAN], [0, 0, 0], pa.float64())

    assert possible_results(col("x") < 9, pa.float64(), ranges, [4, 4, 4]) == ["tf", "tf", "tf"]
    assert possible_results(col("x") == 2, pa.float64(), ranges, [4, 4, 4]) == ["tf", "tf", "tf"]
    assert possible_results(col("x") != 9, pa.float64(), ranges, [4, 4, 4]) == ["t", "t", "tf"]
    assert possible_results(col("x").isin([2]), pa.float64(), ranges, [4, 4, 4]) == ["tf", "tf", "tf"]
    assert possible_results(col("x") > 9, pa.float64(), ranges, [4, 4, 4]) == ["f", "f", "tf"]
    assert possible_results(~(col("x") > 9), pa.float64(), ranges, [4, 4, 4]) == ["t", "t", "tf"]
    assert possible_results(col("x") < NAN, pa.float64(), ranges, [4, 4, 4]) == ["f", "f", "tf"]


def test_prefixes_are_ranges() -> None:
    """If both bounds begin with a prefix, all values between them do."""
    ranges = stats(["ab", "aa", "b", None, "ac", "abx"], ["abz", "az", "c", "aa", "b", None], [0] * 6, pa.string())
    expr = col("x").starts_with("ab")

    assert possible_results(expr, pa.string(), ranges, [4] * 6) == ["t", "tf", "f", "f", "f", "tf"]
    assert possible_results(expr, pa.string_view(), ranges, [4] * 6) == ["t", "tf", "f", "f", "f", "tf"]
    assert possible_results(col("x").starts_with(""), pa.string(), ranges, [4] * 6) == ["t", "t", "t", "tf", "t", "t"]


def test_bounds_decide_boolean_columns() -> None:
    """A boolean column whose bounds are equal, such as a partition column, has a certain result."""
    ranges = stats([True, False, False, None], [True, False, True, None], [0, 0, 0, 4], pa.bool_())

    assert possible_results(col("x"), pa.bool_(), ranges, [4] * 4) == ["t", "f", "tf", "n"]
    assert possible_results(~col("x"), pa.bool_(), ranges, [4] * 4) == ["f", "t", "tf", "n"]
    assert possible_results(col("x") == True, pa.bool_(), ranges, [4] * 4) == ["t", "f", "tf", "n"]  # noqa: E712


@pytest.mark.parametrize(
    ("type_", "value", "other"),
    [
        (pa.int32(), 3, 4),
        (pa.string(), "a", "b"),
        (pa.large_string(), "a", "b"),
        (pa.dictionary(pa.int8(), pa.string()), "a", "b"),
        (pa.binary(), b"a", b"b"),
        (pa.bool_(), False, True),
        (pa.date32(), dt.date(2024, 1, 30), dt.date(2024, 1, 31)),
        (pa.timestamp("us"), MIDNIGHT, MIDNIGHT + dt.timedelta(seconds=1)),
        (pa.decimal128(5, 2), Decimal("1.5"), Decimal("1.6")),
        (pa.time64("us"), dt.time(1), dt.time(2)),
    ],
    ids=str,
)
def test_partition_values_decide_exactly(type_: pa.DataType, value: Any, other: Any) -> None:
    """If both bounds are the value itself, every result is certain."""
    ranges = stats([value, other, None], [value, other, None], [0, 0, 4], type_)

    assert possible_results(col("x") == value, type_, ranges, [4] * 3) == ["t", "f", "n"]
    assert possible_results(col("x") != value, type_, ranges, [4] * 3) == ["f", "t", "n"]
    assert possible_results(col("x") < other, type_, ranges, [4] * 3) == ["t", "f", "n"]
    assert possible_results(col("x") >= other, type_, ranges, [4] * 3) == ["f", "t", "n"]
    assert possible_results(col("x").isin([value]), type_, ranges, [4] * 3) == ["t", "f", "n"]
    assert possible_results(col("x").isin([value, other]), type_, ranges, [4] * 3) == ["t", "t", "n"]
    assert possible_results(~col("x").isin([value]), type_, ranges, [4] * 3) == ["f", "t", "n"]
    assert possible_results(col("x").is_null(), type_, ranges, [4] * 3) == ["f", "f", "t"]


def test_bounds_of_both_columns_decide_a_comparison() -> None:
    """A comparison is certain if the ranges do not overlap, or are one and the same value."""
    schema = pa.schema({"p": pa.int8(), "q": pa.uint64()})
    ranges = {
        "p": stats([1, 1, 2, -5, 1], [3, 5, 2, -1, 3], [0, 0, 0, 1, 0], pa.int8()),
        "q": stats([4, 5, 2, 0, None], [9, 9, 2, 9, 9], [0, 0, 0, 0, 0], pa.uint64()),
    }

    def letters(expr: Expr) -> list[str]:
        found = expr.bind(schema, table="mem:t").prune(ranges, np.full(5, 4))
        each = zip(found.can_true, found.can_false, found.can_null, strict=True)
        return ["".join(name for name, may in zip("tfn", group, strict=True) if may) for group in each]

    assert letters(col("p") < col("q")) == ["t", "tf", "f", "tn", "tf"]
    assert letters(col("q") < col("p")) == ["f", "f", "f", "fn", "tf"]
    assert letters(col("p") == col("q")) == ["f", "tf", "t", "fn", "tf"]
    assert letters(col("p") != col("q")) == ["t", "tf", "f", "tn", "tf"]


@pytest.mark.parametrize(
    ("column_type", "stats_type", "low", "high", "expected"),
    [
        (pa.int64(), pa.int32(), 5, 9, "f"),
        (pa.int64(), pa.string(), "5", "9", "f"),
        (pa.int64(), pa.string(), "few", "9", "tf"),
        (pa.int64(), pa.float64(), 5.0, 9.0, "tf"),
        (pa.int64(), pa.decimal128(5, 1), Decimal(5), Decimal(9), "f"),
        (pa.int64(), pa.decimal128(5, 1), Decimal("5.5"), Decimal(9), "tf"),
        (pa.int64(), pa.list_(pa.int64()), [5], [9], "tf"),
        (pa.int8(), pa.int64(), -1000, 9, "tf"),
        (pa.int64(), pa.null(), None, None, "tf"),
        (pa.float64(), pa.int64(), 5, 9, "f"),
        (pa.float16(), pa.float64(), 5.0, 9.0, "f"),
        (pa.decimal128(20, 1), pa.int64(), 5, 9, "f"),
        (pa.decimal64(5, 1), pa.int64(), 5, 9, "tf"),
        (pa.int64(), pa.dictionary(pa.int8(), pa.string()), "5", "9", "f"),
    ],
    ids=str,
)
def test_statistics_of_another_type_are_cast_or_ignored(
    column_type: pa.DataType, stats_type: pa.DataType, low: Any, high: Any, expected: str
) -> None:
    """Statistics are cast if the cast preserves the order; a failed or rounded cast proves nothing."""
    assert possible_results(col("x") < 5, column_type, stats([low], [high], [0], stats_type), [4]) == [expected]


def test_numeric_bounds_prove_nothing_for_text() -> None:
    """Numeric bounds prove nothing for a text column, because 10 comes before 9 as text."""
    assert possible_results(col("x") == "95", pa.string(), stats([9], [100], [0], pa.int64()), [4]) == ["tf"]


def test_text_bounds_decide_timestamps() -> None:
    """Text bounds with a time zone decide timestamps with a zone, and no others; date bounds decide timestamps too."""
    text = stats(["2024-01-30T00:00:00Z"], ["2024-01-31T00:00:00Z"], [0], pa.string())
    days = stats([dt.date(2024, 1, 30)], [dt.date(2024, 1, 31)], [0], pa.date32())

    assert possible_results(col("x") < "2024-02-01T00:00Z", pa.timestamp("us", "UTC"), text, [4]) == ["t"]
    assert possible_results(col("x") > "2024-02-01T00:00Z", pa.timestamp("us", "UTC"), text, [4]) == ["f"]
    assert possible_results(col("x") < "2024-02-01", pa.timestamp("us"), text, [4]) == ["tf"]
    assert possible_results(col("x") < "2024-02-01", pa.timestamp("us"), days, [4]) == ["t"]


def test_statistics_of_fields_have_dotted_names() -> None:
    """A field of a struct is pruned like a column, by the statistics of its dotted name."""
    expr = bind(col("a")["b"] > 9)

    assert expr.prune({"a.b": stats([1], [3], [0], pa.int64())}, np.array([4])).may_keep.tolist() == [False]
    assert expr.prune({"b": stats([1], [3], [0], pa.int64())}, np.array([4])).may_keep.tolist() == [True]


def test_pruning_an_unbound_expression_raises() -> None:
    """Pruning an unbound expression raises an error, because statistics need the types of the columns."""
    with pytest.raises(FilterError) as caught:
        (col("x") > 3).prune({}, np.array([4]))

    assert str(caught.value) == "col('x') is not bound to a table. Call bind(schema, table=...) before prune(...)."


def test_a_million_row_groups_are_pruned() -> None:
    """Pruning handles a million row groups and a list of a thousand values, of which each is in one row group."""
    low = np.arange(1_000_000)
    ranges = {"x": ColumnRange(low=pa.array(low * 10), high=pa.array(low * 10 + 9), nulls=np.zeros(len(low), np.int64))}
    expr = bind(col("x").isin(range(5, 10_000_000, 10_000)) & (col("x") < 5_000_000))

    assert int(expr.prune(ranges, np.ones(len(low), np.int64)).may_keep.sum()) == 500


# ---------------------------------------------------------------------------------------------------------------------
# Properties


Row = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """A filter, and the same filter in plain Python: true, false or None for a row."""

    expr: Expr
    holds: Callable[[Row], bool | None]

    def __repr__(self) -> str:
        """Return the filter, for Hypothesis to show."""
        return repr(self.expr)


TYPES = {"i": pa.int64(), "j": pa.int8(), "f": pa.float64(), "s": pa.string(), "b": pa.bool_()}
ints = st.integers(-4, 4)
floats = st.sampled_from([-2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, math.inf, NAN])
texts = st.text("ab", max_size=3)
VALUES: dict[str, st.SearchStrategy[Any]] = {"i": ints, "j": ints, "f": floats, "s": texts, "b": st.booleans()}
LITERALS = {**VALUES, "i": ints | floats | st.just(2**70), "j": ints | floats | st.just(-1000), "f": ints | floats}


def is_nan(value: object) -> bool:
    """Return whether a value is NaN."""
    return isinstance(value, float) and math.isnan(value)


def compared(op: Callable[[Any, Any], Any], name: str, literal: Any) -> Rule:
    """Return a comparison with a literal."""
    return Rule(op(col(name), literal), lambda row: None if row[name] is None else op(row[name], literal))


def paired(op: Callable[[Any, Any], Any], one: str, two: str) -> Rule:
    """Return a comparison of two columns."""
    return Rule(op(col(one), col(two)), lambda row: None if row[one] is None or row[two] is None else op(row[one], row[two]))


def member(name: str, values: list[Any]) -> Rule:
    """Return a test for membership."""
    return Rule(col(name).isin(values), lambda row: None if row[name] is None else any(row[name] == v for v in values))


def missing(name: str) -> Rule:
    """Return a test for null."""
    return Rule(col(name).is_null(), lambda row: row[name] is None)


def prefixed(prefix: str) -> Rule:
    """Return a test for a prefix."""
    return Rule(col("s").starts_with(prefix), lambda row: None if row["s"] is None else row["s"].startswith(prefix))


def negated(rule: Rule) -> Rule:
    """Return the negation of a rule."""

    def holds(row: Row) -> bool | None:
        found = rule.holds(row)
        return None if found is None else not found

    return Rule(~rule.expr, holds)


def both(one: Rule, two: Rule) -> Rule:
    """Return the conjunction of two rules by Kleene's logic."""

    def holds(row: Row) -> bool | None:
        found = {one.holds(row), two.holds(row)}
        return False if False in found else None if None in found else True

    return Rule(one.expr & two.expr, holds)


def either(one: Rule, two: Rule) -> Rule:
    """Return the disjunction of two rules by Kleene's logic."""

    def holds(row: Row) -> bool | None:
        found = {one.holds(row), two.holds(row)}
        return True if True in found else None if None in found else False

    return Rule(one.expr | two.expr, holds)


operators = st.sampled_from([eq, ne, lt, le, gt, ge])
leaves = st.one_of(
    *(st.builds(compared, operators, st.just(name), literals) for name, literals in LITERALS.items()),
    *(
        st.builds(member, st.just(name), st.lists(literals.filter(lambda value: not is_nan(value)), max_size=3))
        for name, literals in LITERALS.items()
    ),
    st.builds(paired, operators, st.sampled_from("ijf"), st.sampled_from("ijf")),
    st.builds(prefixed, texts),
    st.sampled_from([Rule(col("b"), lambda row: row["b"])]),
    st.builds(missing, st.sampled_from(list(TYPES))),
)
rules = st.recursive(
    leaves, lambda inner: st.builds(negated, inner) | st.builds(both, inner, inner) | st.builds(either, inner, inner)
)
tables = st.lists(st.fixed_dictionaries({name: values | st.none() for name, values in VALUES.items()}), max_size=12)


def to_table(rows: list[Row]) -> pa.Table:
    """Return rows as a table."""
    return pa.table({name: pa.array([row[name] for row in rows], type_) for name, type_ in TYPES.items()})


@given(rules, tables, st.data())
def test_masks_agree_with_plain_python(rule: Rule, rows: list[Row], data: st.DataObject) -> None:
    """A mask selects the same rows as plain Python, with None for null, however the table is cut into chunks."""
    whole = to_table(rows)
    cut = data.draw(st.integers(0, len(rows)))
    chunked = pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])
    expected = [rule.holds(row) is True for row in rows]

    assert rule.expr.mask(whole).tolist() == expected
    assert rule.expr.mask(chunked).tolist() == expected


MOSTLY = st.sampled_from([True, True, True, False])


@st.composite
def inexact_stats(draw: st.DrawFn, name: str, groups: list[list[Row]]) -> ColumnRange | None:
    """Draw true statistics of a column's row groups, which may be wider than necessary or missing."""
    if not draw(MOSTLY):
        return None
    lows: list[Any] = []
    highs: list[Any] = []
    nulls: list[int] = []
    for group in groups:
        values = [row[name] for row in group if row[name] is not None and not is_nan(row[name])]
        near = [*values, *draw(st.lists(VALUES[name].filter(lambda value: not is_nan(value)), max_size=1))]
        known = draw(st.tuples(MOSTLY, MOSTLY, MOSTLY))
        lows.append(min(near) if values and known[0] else None)
        highs.append(max(near) if values and known[1] else None)
        nulls.append(sum(row[name] is None for row in group) if known[2] else -1)
    return stats(lows, highs, nulls, TYPES[name])


def pruned(rule: Rule, groups: list[list[Row]], data: st.DataObject) -> Verdict:
    """Return the verdict on row groups by true statistics that are drawn for them."""
    drawn = {name: data.draw(inexact_stats(name, groups)) for name in TYPES}
    ranges = {name: found for name, found in drawn.items() if found is not None}
    counts = [len(group) if data.draw(MOSTLY) else -1 for group in groups]
    return rule.expr.bind(pa.schema(TYPES), table="mem:t").prune(ranges, np.array(counts, np.int64))


@given(rules, st.lists(tables, max_size=4), st.data())
def test_statistics_never_claim_too_much(rule: Rule, groups: list[list[Row]], data: st.DataObject) -> None:
    """Every result of a row is possible by the verdict, and if all rows pass for certain, they do."""
    verdict = pruned(rule, groups, data)

    for at, group in enumerate(groups):
        found = {rule.holds(row) for row in group}
        assert verdict.can_true[at] or True not in found
        assert verdict.can_false[at] or False not in found
        assert verdict.can_null[at] or None not in found
        assert verdict.may_keep[at] or not rule.expr.mask(to_table(group)).any()
        assert not verdict.keeps_all[at] or rule.expr.mask(to_table(group)).all()


@given(rules, rules, tables)
def test_de_morgan_holds(one: Rule, two: Rule, rows: list[Row]) -> None:
    """A negated conjunction selects the rows of the disjunction of the negations."""
    table = to_table(rows)

    assert (~(one.expr & two.expr)).mask(table).tolist() == (~one.expr | ~two.expr).mask(table).tolist()
