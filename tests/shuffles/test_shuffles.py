"""Rules that every shuffle follows, including new modules, and pinned orders that must never change."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import numpy as np
import pytest

import penstock as ps
import penstock.shuffles
from penstock._engine.order.epoch import Epoch
from penstock.model import IntArray
from penstock.protocols import Shuffle
from penstock.shuffles.exact import scatter
from penstock.shuffles.window import UnitStream, window_rows
from penstock.testing import check_shuffle

MODULES = [found.name for found in pkgutil.iter_modules(penstock.shuffles.__path__) if not found.name.startswith("_")]


def made(module: str) -> Shuffle:
    """Return the shuffle of a module with its defaults."""
    found = importlib.import_module(f"penstock.shuffles.{module}")
    shuffle: Shuffle = getattr(found, found.__all__[0])()
    return shuffle


def order(shuffle: Shuffle, counts: list[int], *, seed: int = 0, epoch: int = 0, lanes: int = 1) -> list[int]:
    """Return the order of an epoch as row numbers in stored order."""
    starts = np.cumsum([0, *counts])
    sequence = Epoch(shuffle, np.array(counts), seed=seed, epoch=epoch, lanes=lanes)
    found: list[int] = []
    for piece in sequence.pieces(((0, sum(counts)),)):
        window = sequence.window(piece.lane, piece.window)
        rows: list[int] = []
        for read in window.reads:
            inside = range(read.rows.start, read.rows.stop) if isinstance(read.rows, slice) else read.rows.tolist()
            rows += [int(starts[read.unit]) + row for row in inside]
        found += rows if window.take is None else [rows[at] for at in window.take]
    return found


@pytest.mark.parametrize("module", MODULES)
def test_every_shuffle_follows_the_rules(module: str) -> None:
    """Every module in shuffles/ is checked against the protocol."""
    check_shuffle(made(module))


@pytest.mark.parametrize("module", MODULES)
def test_every_shuffle_says_its_bias_and_its_cost(module: str) -> None:
    """The docstring of every shuffle states its bias and its cost."""
    text = type(made(module)).__doc__ or ""

    assert "Bias:" in text
    assert "Cost:" in text


class Lossy(ps.InOrder):
    """A shuffle that returns the rows of one unit again and again."""

    def settle(self, num_rows: int, num_bytes: int) -> Lossy:  # noqa: ARG002 - the protocol's
        """Return itself."""
        return self

    def arrange(self, counts: IntArray, *, seed: int, epoch: int) -> UnitStream:  # noqa: ARG002 - the protocol's
        """Return the stream with every unit replaced by the first."""
        stream = UnitStream.stored(counts)
        return UnitStream(units=stream.units * 0, ends=stream.ends)


def test_the_kit_catches_a_shuffle_that_loses_rows() -> None:
    """The kit raises with the rule that a broken shuffle breaks."""
    with pytest.raises(AssertionError, match="breaks a rule: every row comes once"):
        check_shuffle(Lossy())


# Saved states depend on these orders for ever. An order that must change gets a new number, and the old one stays.
COUNTS = [4, 3, 0, 5]
PINNED: dict[str, tuple[Shuffle, int, int]] = {
    "window": (ps.WindowShuffle(rows=6), 0, 0),
    "window, next epoch": (ps.WindowShuffle(rows=6), 0, 1),
    "window, seed 7": (ps.WindowShuffle(rows=6), 7, 0),
    "row groups": (ps.RowGroupShuffle(), 0, 0),
    "exact": (ps.ExactShuffle(rows=5), 0, 0),
    "exact, seed 7": (ps.ExactShuffle(rows=5), 7, 0),
}
ORDERS = {
    "window": [2, 5, 6, 4, 1, 0, 9, 11, 7, 8, 3, 10],
    "window, next epoch": [11, 10, 8, 9, 4, 7, 6, 2, 5, 0, 1, 3],
    "window, seed 7": [4, 0, 3, 5, 2, 1, 7, 9, 6, 10, 8, 11],
    "row groups": [4, 5, 6, 0, 1, 2, 3, 7, 8, 9, 10, 11],
    "exact": [11, 4, 6, 9, 5, 1, 3, 2, 10, 0, 8, 7],
    "exact, seed 7": [0, 8, 9, 11, 1, 10, 5, 2, 4, 7, 3, 6],
    "window, two lanes": [2, 5, 6, 4, 1, 0, 7, 3, 11, 8, 9, 10],
}


@pytest.mark.parametrize("name", PINNED)
def test_orders_are_pinned_for_ever(name: str) -> None:
    """The order of a seed and an epoch is the same in every release."""
    shuffle, seed, epoch = PINNED[name]

    assert order(shuffle, COUNTS, seed=seed, epoch=epoch) == ORDERS[name]


def test_the_order_with_lanes_is_pinned_for_ever() -> None:
    """Windows lie inside lanes, so the number of lanes is part of the order."""
    assert order(ps.WindowShuffle(rows=6), COUNTS, lanes=2) == ORDERS["window, two lanes"]


def test_the_rows_fetched_together_do_not_change_an_exact_order() -> None:
    """The order of an exact shuffle does not depend on how many rows it fetches together."""
    assert len({tuple(order(ps.ExactShuffle(rows=rows), COUNTS, seed=3)) for rows in (1, 2, 5, 100)}) == 1


def test_an_exact_shuffle_is_fair() -> None:
    """Over many seeds every row comes first about as often: within 5 standard deviations of chance."""
    firsts = [order(ps.ExactShuffle(), [2, 2, 2], seed=seed)[0] for seed in range(1200)]

    assert max(abs(firsts.count(row) - 200) for row in range(6)) < 5 * (1200 / 6 * 5 / 6) ** 0.5


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097])
def test_scatter_is_a_permutation(count: int) -> None:
    """`scatter` sends every place to a different one, none of them outside."""
    keys = np.arange(6, dtype=np.uint64)

    assert sorted(scatter(np.arange(count, dtype=np.uint64), count, keys).tolist()) == list(range(count))


def test_windows_of_a_lane_are_of_equal_length() -> None:
    """Windows of a lane differ in length by at most one row."""
    arrangement = ps.WindowShuffle(rows=10).arrange(np.full(7, 3), seed=0, epoch=0)

    assert np.diff(arrangement.edges(0, 21)).tolist() == [7, 7, 7]
    assert arrangement.edges(4, 4).tolist() == [4]
    assert ps.ExactShuffle(rows=10).arrange(np.full(7, 3), seed=0, epoch=0).edges(4, 4).tolist() == [4]


def test_a_window_follows_from_bytes_unless_rows_are_given() -> None:
    """The default window holds 128 MiB of files, and never more than a million rows."""
    assert ps.WindowShuffle().settle(num_rows=1000, num_bytes=1 << 30).rows == 125
    assert ps.WindowShuffle(rows=7).settle(num_rows=1000, num_bytes=1 << 30).rows == 7
    assert ps.ExactShuffle().settle(num_rows=1000, num_bytes=1 << 30).rows == 125
    assert ps.ExactShuffle(rows=3).settle(num_rows=1000, num_bytes=1 << 30).rows == 3
    assert window_rows(num_rows=10**9, num_bytes=10**9) == 1_000_000
    assert window_rows(num_rows=3, num_bytes=1 << 40) == 1
    assert window_rows(num_rows=0, num_bytes=0) == 1_000_000


def test_small_files_are_whole_units_up_to_an_eighth_of_a_window() -> None:
    """Files up to an eighth of a window are whole units; a row group shuffle has no such limit."""
    sizes = {"num_rows": 8000, "num_bytes": 1 << 30}

    assert ps.WindowShuffle(rows=80).whole_file_rows == 10
    assert ps.WindowShuffle().whole_file_rows == 0
    assert ps.ExactShuffle(rows=80).whole_file_rows == 10
    assert ps.InOrder().settle(**sizes).whole_file_rows == 125
    assert ps.RowGroupShuffle().settle(**sizes).whole_file_rows == 0


@pytest.mark.parametrize("name", ["rows", "window_bytes", "unit_rows"])
def test_a_window_without_rows_is_refused(name: str) -> None:
    """Each number of a window must be positive."""
    expected = f"WindowShuffle() got {name}=0; expected a positive integer, for example WindowShuffle({name}=100_000)."
    with pytest.raises(ps.errors.ArgumentError) as caught:
        ps.WindowShuffle(**{name: 0})

    assert str(caught.value) == expected


@pytest.mark.parametrize("number", [3.0, "3", True, float("nan"), 1 << 70])
def test_a_number_that_is_not_a_whole_number_raises(number: Any) -> None:
    """Integers of NumPy are accepted; floats, text, booleans and too large numbers raise ArgumentError."""
    for make in (ps.WindowShuffle, ps.ExactShuffle, ps.InOrder):
        with pytest.raises(ps.errors.ArgumentError, match="expected a positive integer"):
            make(number)

    three: Any = np.int64(3)
    assert ps.WindowShuffle(three) == ps.WindowShuffle(3)
    assert type(ps.WindowShuffle(three).rows) is int


def test_an_exact_shuffle_fetches_at_least_a_row() -> None:
    """A number of rows that is not positive raises ArgumentError."""
    expected = "ExactShuffle() got rows=-1; expected a positive integer, for example ExactShuffle(rows=100_000)."
    with pytest.raises(ps.errors.ArgumentError) as caught:
        ps.ExactShuffle(rows=-1)

    assert str(caught.value) == expected
