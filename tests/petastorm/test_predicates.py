"""Predicates: which rows each includes, and that splits equal those of Petastorm."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.petastorm.predicates import (
    PredicateBase,
    in_intersection,
    in_lambda,
    in_negate,
    in_pseudorandom_split,
    in_reduce,
    in_set,
)

SHARES = [0.1, 0.2, 0.3, 0.25]
MOMENT = np.datetime64("2024-01-01T00:00:00.000000")

# The part that has each value in Petastorm 0.13.1, or - if no part has it.
PETASTORM: dict[str, tuple[list[Any], str]] = {
    "int": (
        [np.int64(n) for n in range(64)],
        "01-0311---1-21233-32221231--3-23332-32232213122210-2102110312122",
    ),
    "str": (
        [np.str_(f"img_{n:05}") for n in range(64)],
        "31-32-213331-211-303311----213-1-30223-3-203110121-123233-221101",
    ),
    "float": (
        [np.float64(n / 7) for n in range(64)],
        "33-3-1-0-102233213323-221213110120222232-012313-1101213222-2221-",
    ),
    "float32": (
        [np.float32(n / 7) for n in range(64)],
        "3-22121003-3233233-12-233332133-21221113111112331131121-22-1232-",
    ),
    "moment": (
        [MOMENT + np.timedelta64(n, "m") for n in range(64)],
        "122023311203-1310-1-323--1-2220-332-2031-02323-221321313--11113-",
    ),
    "decimal": (
        [Decimal(n) / 100 for n in range(64)],
        "02-32202323310321-23112--02223010-13-2-0223-23333312-2332031333-",
    ),
    "bytes": (
        [np.bytes_(b"x%d" % n) for n in range(64)],
        "2321-0210222312122330212212122-2312220122221013232--231132030232",
    ),
    "bool": ([np.bool_(n % 2) for n in range(4)], "2323"),
    "none": ([None], "2"),
}


def part_of(value: Any) -> str:
    """Return the number of the part that has a value, or - if no part has it."""
    splits = [in_pseudorandom_split(SHARES, number, "x") for number in range(len(SHARES))]
    return next((str(number) for number, split in enumerate(splits) if split.do_include({"x": value})), "-")


@pytest.mark.parametrize("kind", PETASTORM)
def test_splits_equal_those_of_petastorm(kind: str) -> None:
    """Experiments depend on which rows are for training, so a split must not change."""
    values, expected = PETASTORM[kind]

    assert "".join(map(part_of, values)) == expected


@given(st.one_of(st.integers(), st.text(), st.floats()))
def test_parts_that_sum_to_one_include_all_values(value: Any) -> None:
    """If the fractions sum to 1, each value is in exactly one part."""
    found = [in_pseudorandom_split([0.5, 0.5], number, "x").do_include({"x": value}) for number in range(2)]

    assert sorted(found) == [False, True]


def test_an_invalid_part_of_a_split_raises() -> None:
    """A part number outside the split raises ValueError, and so does a row without the field."""
    for number in (2, -1):
        with pytest.raises(ValueError, match="subset_index is out of range"):
            in_pseudorandom_split([0.5, 0.5], number, "x")
    with pytest.raises(ValueError, match="does not have split key: x"):
        in_pseudorandom_split([0.5, 0.5], 0, "x").do_include({"y": 1})


def test_each_predicate_includes_rows_by_its_rule() -> None:
    """Each predicate includes the rows that its rule describes, and no others."""
    assert in_set({1, 2}, "x").do_include({"x": np.int64(2)})
    assert not in_set([[1], [2]], "x").do_include({"x": [3]})
    assert in_intersection([1, 5], "x").do_include({"x": np.array([5, 6])})
    assert not in_intersection([1], "x").do_include({"x": [2]})
    assert in_intersection(["ab"], "x").do_include({"x": "ab"})
    assert not in_intersection(["a"], "x").do_include({"x": "ab"})
    assert in_lambda(["x", "y"], lambda x, y: x > y).do_include({"x": 2, "y": 1})
    assert in_lambda(["x"], lambda x, least: x > least, 5).do_include({"x": 6})
    assert not in_negate(in_set({1}, "x")).do_include({"x": 1})
    assert in_reduce([in_set({1}, "x"), in_set({2}, "y")], any).do_include({"x": 0, "y": 2})


def test_predicates_return_the_fields_that_they_read() -> None:
    """A combined predicate returns the fields of all its predicates."""
    both = in_reduce([in_set({1}, "x"), in_negate(in_lambda(["y", "z"], max))], all)

    assert both.get_fields() == {"x", "y", "z"}
    assert in_intersection([1], "x").get_fields() == in_pseudorandom_split([1.0], 0, "x").get_fields() == {"x"}
    assert isinstance(both, PredicateBase)


def test_invalid_arguments_of_predicates_raise() -> None:
    """Invalid fields and predicates raise ValueError, and so does a single value for `in_intersection`."""
    with pytest.raises(ValueError, match="Predicate fields should be a list"):
        in_lambda("x", bool)  # type: ignore[arg-type] # it is refused
    for wrong in (lambda: in_negate(bool), lambda: in_reduce([bool], all)):  # type: ignore[arg-type, list-item] # refused
        with pytest.raises(ValueError, match="derived from PredicateBase"):
            wrong()
    with pytest.raises(ValueError, match="Predicate field should have iterable type"):
        in_intersection([1], "x").do_include({"x": 1})
