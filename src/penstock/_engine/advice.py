"""What would make reading faster, decided by what was counted. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from penstock._engine.tally import Tally

__all__ = ["advice"]

KEEPS_UP = 0.1
"""A consumer that waits for less than this share of the time would gain next to nothing by a faster loader."""

MOSTLY = 0.5

HELD = 0.00025
"""Seconds that it takes to have the GIL back, on average, where others hold it to compute; some 0.0001 where none does."""

ONE = 1.3
"""Processors that all threads together have at most, on average, where one of them has the GIL and the others wait for it."""

FEW = 4
"""Probes of which nothing is concluded."""

CROWD = 0.25
"""Threads that must run, or be ready to run, on average, before it is a finding that they do."""

ALL = 0.8
"""A share of the processors that counts as all of them."""

SENTENCES = {
    "nothing": "Nothing has been handed out yet; look again after some batches.",
    "The consumer": 'The consumer is Python-bound and holds the GIL; use processes: .using(workers="processes").',
    "A map": 'A map is Python-bound and holds the GIL; use processes: .using(workers="processes").',
    "Decoding": 'Decoding is Python-bound and holds the GIL; use processes: .using(workers="processes").',
    "keeps up": "The loader keeps up: the consumer waits {waits:.0%} of the time, and nothing here would make it faster.",
    "crowded": (
        "Threads wait for processors that other programs use, or that a quota keeps back; leave them more, or run elsewhere."
    ),
    "first": (
        "Most of the wait is for the first batch, which needs a whole window; read for longer to learn more, or use a smaller "
        "window: .shuffle(penstock.WindowShuffle(rows=...))."
    ),
    "idle": (
        "Threads are idle while the consumer waits, because too little is read ahead; allow more memory with "
        ".using(memory_limit=...), or use smaller row groups or a smaller window."
    ),
    "storage": (
        "The consumer waits for storage {share:.0%} of the time; read more at a time with .using(threads={threads}) or larger "
        "row groups, or from a copy that is nearer."
    ),
    "decode": "The consumer waits for decoding {share:.0%} of the time; use {more}.",
    "decode, full": (
        "The consumer waits for decoding {share:.0%} of the time, on all processors; decode less: fewer columns, or smaller "
        "images by penstock.Resize or Jpeg(shrink_to=...)."
    ),
    "gather": (
        "The consumer waits for rows to be put in order {share:.0%} of the time; select fewer columns, or stack them with "
        ".stack(...)."
    ),
    "hand_over": (
        "The consumer waits for batches to be handed over {share:.0%} of the time; use larger batches, or fewer columns by "
        ".stack(...)."
    ),
    "starting_processes": (
        "The consumer waits for processes to start {share:.0%} of the time, which they do once in each iteration; make several "
        'epochs one iteration with .repeat(), or use threads: .using(workers="threads").'
    ),
    "map": "The consumer waits for a map {share:.0%} of the time; use {more}.",
    "map, full": (
        "The consumer waits for a map {share:.0%} of the time, on all processors; do less in it, or do it once and write "
        "the result."
    ),
    "map, inline": (
        "The consumer waits for a map {share:.0%} of the time, which runs in its own thread; use .batch(...), without a lazy "
        "filter, so that threads run it."
    ),
}


def advice(tally: Tally) -> str:
    """Return what would make the reading faster, in one sentence.

    Example:
        >>> advice(Tally(batches=9, waited_seconds=0.1, consumer_seconds=9.9))
        'The loader keeps up: the consumer waits 1% of the time, and nothing here would make it faster.'
    """
    case, shares = _case(tally), tally.shares
    share = getattr(shares, case.partition(",")[0], 0.0)
    kind, count = ("processes", tally.processes) if tally.processes else ("threads", tally.threads)
    more = f"more {kind}: .using({kind}={2 * count})"
    return SENTENCES[case].format(waits=1 - shares.consumer, share=share, more=more, threads=2 * tally.threads)


def _case(tally: Tally) -> str:
    """Return which sentence fits: the first of these that holds."""
    holder = None if tally.processes else _holder(tally)
    blocked, all_processors = tally.blocked_seconds, ALL * tally.processors * tally.elapsed_seconds
    idle = not tally.processes and tally.busy.total < MOSTLY * tally.threads * blocked
    cases = (
        ("nothing", not tally.batches),
        (holder or "", holder is not None),
        ("keeps up", tally.waited_seconds < KEEPS_UP * tally.elapsed_seconds),
        ("starting_processes", 0 < MOSTLY * (1 - tally.shares.consumer) <= tally.shares.starting_processes),
        ("crowded", tally.queued_seconds >= CROWD * tally.elapsed_seconds and _got(tally) < all_processors),
        ("first", tally.first_seconds >= MOSTLY * tally.waited_seconds),
        ("idle", idle and blocked >= MOSTLY * tally.waited_seconds),
    )
    return next((name for name, holds in cases if holds), None) or _longest(tally)


def _longest(tally: Tally) -> str:
    """Return the kind of work that is waited for longest, with what stands against doing it on more threads."""
    waited = asdict(tally.shares)
    del waited["consumer"]
    longest = max(waited, key=lambda name: float(waited[name]))
    if longest == "map" and tally.inline.map > tally.busy.map:
        return "map, inline"
    full = (tally.processes or tally.threads) >= tally.processors
    if longest == "map" and full and tally.processor.map >= MOSTLY * tally.busy.map:
        return "map, full"
    return "decode, full" if longest == "decode" and full else longest


def _holder(tally: Tally) -> Literal["The consumer", "A map", "Decoding"] | None:
    """Return what holds the GIL while threads wait for it: whoever runs most of all that is run."""
    elapsed, got, processor = tally.elapsed_seconds, _got(tally), tally.processor
    held = tally.probes > FEW and tally.gil_seconds >= HELD
    if not held or tally.processors == 1 or got > ONE * elapsed:
        return None
    # A consumer that waits for nobody gains only if it need not share the GIL with threads that run much.
    if tally.waited_seconds < KEEPS_UP * elapsed and processor.total - processor.read < CROWD * elapsed:
        return None
    if tally.consumer_processor_seconds >= MOSTLY * got:
        return "The consumer"
    return "A map" if processor.map >= MOSTLY * processor.total else "Decoding"


def _got(tally: Tally) -> float:
    """Return what all threads spent on processors, the consumer's too."""
    return tally.processor.total + tally.consumer_processor_seconds
