"""Statistics become shares, advice and text: pure arithmetic, checked case by case."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ArgumentError
from penstock.stats import SENTENCES, Busy, Stats, advice, format_bytes

SECONDS = st.floats(0, 1e6)
BUSY = st.builds(Busy, **dict.fromkeys(asdict(Busy()), SECONDS))
STATS = st.builds(
    Stats,
    batches=st.integers(0, 1000),
    rows=st.integers(0, 1000),
    units_read=st.integers(0, 1000),
    bytes_read=st.integers(0, 1 << 40),
    waited_seconds=SECONDS,
    blocked_seconds=SECONDS,
    first_seconds=SECONDS,
    starting_seconds=SECONDS,
    consumer_seconds=SECONDS,
    consumer_processor_seconds=SECONDS,
    busy=BUSY,
    processor=BUSY,
    queued_seconds=SECONDS,
    probes=st.integers(0, 1000),
    probed_seconds=SECONDS,
    inline=BUSY,
    threads=st.integers(1, 64),
    processors=st.integers(1, 64),
    processes=st.integers(0, 4),
)


@given(STATS)
def test_shares_are_of_the_whole_time(stats: Stats) -> None:
    """For any statistics, no share is negative, and the sum of shares is 1 if there was any time."""
    shares = asdict(stats.shares).values()

    assert min(shares) >= 0
    assert sum(shares) == (pytest.approx(1) if stats.elapsed_seconds or stats.inline.total else 0)


@given(STATS)
def test_advice_is_always_one_sentence(stats: Stats) -> None:
    """For any statistics, the advice is one sentence with every gap filled."""
    text = advice(stats)

    assert text == stats.remedy
    assert text.endswith(".")
    assert "{" not in text
    assert ". " not in text


@given(STATS)
def test_everything_is_json(stats: Stats) -> None:
    """All numbers, also the derived ones, are JSON values."""
    loaded = json.loads(json.dumps(stats.as_dict()))

    assert loaded["busy"] == asdict(stats.busy)
    assert loaded["shares"] == asdict(stats.shares)
    assert (loaded["rows"], loaded["remedy"]) == (stats.rows, stats.remedy)
    assert (loaded["utilisation"], loaded["rows_per_second"]) == (stats.utilisation, stats.rows_per_second)


@given(STATS, STATS)
def test_since_subtracts_what_plus_adds(one: Stats, two: Stats) -> None:
    """`since` subtracts what `plus` adds; numbers of threads, processors and processes stay."""
    both = one.plus(two)
    after = both.since(two)

    assert (after.rows, after.batches, after.bytes_read, after.probes) == (one.rows, one.batches, one.bytes_read, one.probes)
    assert after.busy.map == pytest.approx(one.busy.map, abs=1e-6)
    assert (both.threads, both.processors, both.processes) == (one.threads, one.processors, one.processes)
    assert type(after) is Stats


def test_since_needs_earlier_statistics() -> None:
    """`since(None)` raises ArgumentError."""
    with pytest.raises(ArgumentError, match=r"^since\(\) got None; expected a Stats that stats\(\) returned earlier\. Keep it"):
        Stats().since(None)  # type: ignore[arg-type]


def test_nothing_counted_is_all_zeroes() -> None:
    """Before the first batch all derived numbers are zero, without a division by zero."""
    stats = Stats()

    assert (stats.rows_per_second, stats.utilisation, stats.gil_seconds) == (0, 0, 0)
    assert set(asdict(stats.shares).values()) == {0}


def test_a_wait_is_divided_by_the_busy_time_of_threads() -> None:
    """If threads read for two thirds of their time, two of three waited seconds are for storage and decompression."""
    stats = Stats(
        waited_seconds=3, blocked_seconds=3, consumer_seconds=1, busy=Busy(read=4, map=2), processor=Busy(read=1, map=2)
    )

    assert stats.storage_seconds == 3
    assert (stats.shares.storage, stats.shares.decode, stats.shares.map) == (0.375, 0.125, 0.25)
    assert (stats.shares.hand_over, stats.shares.consumer) == (0, 0.25)


def test_inline_work_counts_as_its_own_kind() -> None:
    """A map in the consumer's thread counts as map; waits that no clock explains count as hand-over."""
    stats = Stats(waited_seconds=4, blocked_seconds=1, inline=Busy(map=2), busy=Busy(decode=0.5), processor=Busy(decode=0.5))

    assert (stats.shares.map, stats.shares.decode, stats.shares.hand_over) == (0.5, 0.25, 0.25)


def test_reads_that_are_slowed_down_like_other_work_do_not_wait_for_storage() -> None:
    """If all work takes twice its processor time, so may reads; only what they take beyond that is storage."""
    alike = Stats(busy=Busy(read=8, gather=2, decode=2), processor=Busy(read=4, gather=1, decode=1))
    worse = Stats(busy=Busy(read=12, gather=2, decode=2), processor=Busy(read=4, gather=1, decode=1))

    assert (alike.storage_seconds, worse.storage_seconds) == (0, 4)


WAITS: dict[str, Any] = {
    "batches": 100,
    "waited_seconds": 8.0,
    "blocked_seconds": 8.0,
    "consumer_seconds": 2.0,
    "threads": 2,
    "processors": 2,
}
GIL_HELD: dict[str, Any] = {"probes": 50, "probed_seconds": 0.1}
CASES = {
    "nothing": Stats(consumer_seconds=5),
    "The consumer": Stats(
        **WAITS | {"consumer_seconds": 8.0}, **GIL_HELD, consumer_processor_seconds=9, busy=Busy(map=9), processor=Busy(map=4)
    ),
    "A map": Stats(**WAITS, **GIL_HELD, busy=Busy(map=18), processor=Busy(map=9), consumer_processor_seconds=1),
    "Decoding": Stats(**WAITS, **GIL_HELD, busy=Busy(decode=18), processor=Busy(decode=9)),
    "keeps up": Stats(batches=9, waited_seconds=0.5, consumer_seconds=9.5),
    "starting_processes": Stats(
        **WAITS, processes=2, starting_seconds=5, first_seconds=6, queued_seconds=8, busy=Busy(map=2), processor=Busy(map=2)
    ),
    "crowded": Stats(**WAITS, busy=Busy(decode=16), processor=Busy(decode=8), queued_seconds=8),
    "first": Stats(**WAITS, first_seconds=4, busy=Busy(read=16), processor=Busy(read=16)),
    "idle": Stats(**WAITS, busy=Busy(read=4), processor=Busy(read=4)),
    "storage": Stats(**WAITS, busy=Busy(read=16), processor=Busy(read=1)),
    "decode": Stats(**WAITS | {"processors": 8}, busy=Busy(decode=16), processor=Busy(decode=16)),
    "decode, full": Stats(**WAITS, busy=Busy(read=12, decode=4), processor=Busy(read=12, decode=4)),
    "gather": Stats(**WAITS, busy=Busy(gather=16), processor=Busy(gather=16)),
    "hand_over": Stats(**WAITS, busy=Busy(hand_over=16), processor=Busy(hand_over=16)),
    "map": Stats(**WAITS, busy=Busy(map=16), processor=Busy(map=1)),
    "map, full": Stats(**WAITS, busy=Busy(map=16), processor=Busy(map=15)),
    "map, inline": Stats(batches=9, waited_seconds=8, consumer_seconds=2, inline=Busy(map=7), busy=Busy(read=1)),
}
EXPECTED = {
    "keeps up": "The loader keeps up: the consumer waits 5% of the time, and nothing here would make it faster.",
    "storage": (
        "The consumer waits for storage 75% of the time; read more at a time with .using(threads=4) or larger row groups, "
        "or from a copy that is closer."
    ),
    "decode": "The consumer waits for decoding 80% of the time; use more threads: .using(threads=4).",
    "decode, full": (
        "The consumer waits for decoding 80% of the time, on all processors; decode less: fewer columns, or smaller images by "
        "penstock.Resize or Jpeg(shrink_to=...)."
    ),
    "gather": (
        "The consumer waits for rows to be put in order 80% of the time; select fewer columns, or stack them with .stack(...)."
    ),
    "hand_over": (
        "The consumer waits for batches to be converted 80% of the time; use larger batches, or fewer columns by .stack(...)."
    ),
    "starting_processes": (
        "The consumer waits for processes to start 50% of the time, which they do once in each iteration; make several epochs "
        'one iteration with .repeat(), or use threads: .using(workers="threads").'
    ),
    "map": "The consumer waits for a map 80% of the time; use more threads: .using(threads=4).",
    "map, full": (
        "The consumer waits for a map 80% of the time, on all processors; do less in it, or do it once and write the result."
    ),
    "map, inline": (
        "The consumer waits for a map 70% of the time, which runs in its own thread; use .batch(...), without a lazy filter, "
        "so that threads run it."
    ),
}


def test_every_sentence_has_a_case() -> None:
    """`CASES` has every sentence."""
    assert CASES.keys() == SENTENCES.keys()


@pytest.mark.parametrize("case", CASES)
def test_the_remedy_fits_the_bottleneck(case: str) -> None:
    """Each bottleneck has its own sentence."""
    assert advice(CASES[case]) == EXPECTED.get(case, SENTENCES[case])


def test_processes_are_reported_like_threads() -> None:
    """If processes do the work, the advice is more processes, and the text reports them beside the threads."""
    stats = Stats(**WAITS | {"processors": 8}, processes=3, busy=Busy(map=16), processor=Busy(map=16))

    assert stats.remedy == "The consumer waits for a map 80% of the time; use more processes: .using(processes=6)."
    assert "  threads     2 and 3 processes, busy 32% of the time" in str(stats)


def test_the_start_of_processes_is_a_share_of_its_own() -> None:
    """Waiting for processes to start has its own share, and no more of it counts than was waited."""
    stats = CASES["starting_processes"]
    long = Stats(waited_seconds=4, blocked_seconds=3, consumer_seconds=1, starting_seconds=9, processes=1, busy=Busy(map=1))

    assert (stats.shares.starting_processes, stats.shares.map, stats.shares.consumer) == (0.5, 0.3, 0.2)
    assert "  waiting on  storage 0%, decode 0%, gather 0%, map 30%, hand over 0%, starting processes 50%, consumer 20%" in str(
        stats
    )
    assert (long.shares.starting_processes, long.shares.map, long.shares.hand_over) == (0.6, 0.0, 0.2)
    assert "starting" not in str(CASES["map"])


def test_code_that_holds_the_gil_is_named_with_its_remedy() -> None:
    """The advice names the code that holds the GIL, and processes as the remedy."""
    assert advice(CASES["The consumer"]) == (
        'The consumer is Python-bound and holds the GIL; use processes: .using(workers="processes").'
    )
    assert advice(CASES["A map"]) == 'A map is Python-bound and holds the GIL; use processes: .using(workers="processes").'


@pytest.mark.parametrize(
    "change",
    [
        {"processes": 2},
        {"processors": 1},
        {"probes": 3},
        {"probed_seconds": 0.001},
        {"processor": Busy(map=16)},
    ],
    ids=str,
)
def test_processes_are_no_remedy_without_a_gil_to_escape(change: dict[str, object]) -> None:
    """The GIL is not blamed with processes, one processor, few probes, a free GIL, or all processors at work."""
    given = {**asdict(CASES["A map"]), "busy": Busy(map=18), "processor": Busy(map=9), "inline": Busy(), **change}

    assert "GIL" not in advice(Stats(**given))


def test_for_a_consumer_that_never_waits_the_gil_is_named_only_if_threads_use_much_of_it() -> None:
    """If the consumer hardly waits, the GIL is named only if threads use much processor time."""
    fed: dict[str, Any] = {"batches": 9, "waited_seconds": 0.1, "consumer_seconds": 9.9, "processors": 2, **GIL_HELD}
    few = Stats(**fed, consumer_processor_seconds=9, processor=Busy(decode=1), busy=Busy(decode=5))
    many = Stats(**fed, consumer_processor_seconds=7, processor=Busy(decode=3), busy=Busy(decode=9))

    assert advice(few).startswith("The loader keeps up")
    assert advice(many).startswith("The consumer is Python-bound and holds the GIL")


def test_all_processors_at_work_are_not_crowded() -> None:
    """If threads queue for processors that this program has all to itself, other programs are not blamed."""
    full = Stats(**WAITS, busy=Busy(decode=40), processor=Busy(decode=19), queued_seconds=20)

    assert advice(full).startswith("The consumer waits for decoding 80% of the time, on all processors; decode less")


def test_it_prints_as_a_small_table() -> None:
    """The text has all values, in lines like those of `explain`."""
    stats = Stats(
        **WAITS, rows=6400, units_read=5, bytes_read=12_300_000, first_seconds=1, busy=Busy(read=16), processor=Busy(read=1)
    )

    assert str(stats) == (
        "  handed out  100 batches, 6,400 rows, 640 rows/s\n"
        "  read        5 units, 12.3 MB, 1.23 MB/s\n"
        "  time        10 s, of which the consumer waited 8 s, 1 s of it for the first batch\n"
        "  waiting on  storage 75%, decode 5%, gather 0%, map 0%, hand over 0%, consumer 20%\n"
        "  threads     2, busy 80% of the time; ready for 0 s, and no processor free\n"
        "  busy        read 16 s (1); in brackets what of it was on a processor\n"
        f"  remedy      {EXPECTED['storage']}"
    )


def test_it_prints_before_anything_was_counted() -> None:
    """Statistics without any batch can be printed."""
    assert "nothing yet" in str(Stats())
    assert str(Stats()).endswith("remedy      No batch was returned yet; check again after some batches.")


@pytest.mark.parametrize(("count", "expected"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2.5e12, "2.5 TB")])
def test_bytes_are_formatted_in_units(count: float, expected: str) -> None:
    """Bytes have three digits and a unit."""
    assert format_bytes(count) == expected
