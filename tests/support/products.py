"""Test parameters: some always run, and the others run only on request."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import pytest

__all__ = ["product", "selected", "slow_except"]


def product(*axes: Sequence[Hashable]) -> list[Any]:
    """Return all combinations; those off the diagonal, which has each value of each axis, run with --full only.

    Example:
        >>> [(case.values, bool(case.marks)) for case in product([1, 2], ["a", "b"])]
        [((1, 'a'), False), ((1, 'b'), True), ((2, 'a'), True), ((2, 'b'), False)]
    """
    diagonal = {tuple(axis[at % len(axis)] for axis in axes) for at in range(max(map(len, axes)))}
    return _marked(itertools.product(*axes), diagonal, pytest.mark.full)


def selected(cases: Sequence[Hashable], always: Collection[Hashable]) -> list[Any]:
    """Return all cases; cases that are not in `always` run with --full only."""
    return _marked(cases, always, pytest.mark.full)


def slow_except(cases: Collection[Hashable], fast: Collection[Hashable]) -> list[Any]:
    """Return all cases; cases that are not in `fast` are marked as slow."""
    return _marked(cases, fast, pytest.mark.slow)


def _marked(cases: Any, unmarked: Collection[Hashable], mark: pytest.MarkDecorator) -> list[Any]:
    cases = list(cases)
    unknown = set(unmarked) - set(cases)
    assert not unknown, f"{unknown} are none of the cases."
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in unmarked else mark) for case in cases
    ]
