"""What was counted while reading, and with what the time went by, as a value. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self

from penstock.errors import ArgumentError

__all__ = ["Busy", "Counters", "Shares", "Stats", "advice", "format_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Seconds, by what was done in them.

    Attributes:
        read: Units were read: storage was waited for, and Parquet unpacked.
        gather: Rows were put in their order and in their windows.
        decode: Cells became arrays.
        map: Functions of the user ran.
        hand_over: Batches became what a framework takes.
    """

    read: float = 0.0
    gather: float = 0.0
    decode: float = 0.0
    map: float = 0.0
    hand_over: float = 0.0

    @property
    def total(self) -> float:
        """All seconds together."""
        return self.read + self.gather + self.decode + self.map + self.hand_over


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What the time between the first `next()` and the last went by with; together 1.

    All but the last are shares in which the consumer waited.

    Attributes:
        storage: For bytes to come.
        decode: For Parquet to be unpacked, and cells to become arrays.
        gather: For rows to be put in their order.
        map: For functions of the user.
        hand_over: For batches to become what a framework takes, and for the loader's own bookkeeping.
        starting_processes: For processes to start, where there are any.
        consumer: The consumer was at work, and waited for nobody.
    """

    storage: float = 0.0
    decode: float = 0.0
    gather: float = 0.0
    map: float = 0.0
    hand_over: float = 0.0
    starting_processes: float = 0.0
    consumer: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What an iteration, or all iterations of a loader, did so far, and with what time.

    Attributes:
        batches: Batches handed out, or rows where they are handed out one by one.
        rows: Rows handed out, counted before maps.
        units_read: Units read, also those read ahead.
        bytes_read: What the columns of these units take on storage.
        waited_seconds: What the consumer waited in `next()`; cutting views out of a window in memory is not counted.
        blocked_seconds: The part of it in which its thread did nothing, but waited for others.
        first_seconds: The part of it before the first batch of each iteration.
        starting_seconds: What passed in each iteration before the first process could begin, where there are processes.
        consumer_seconds: What the consumer took between calls of `next()`, up to now where it goes on.
        consumer_processor_seconds: What of all this its thread spent on a processor.
        busy: What the loader's threads were busy with.
        processor: The part of it that they spent on a processor, and waited neither for storage nor for the GIL.
        queued_seconds: What threads were ready to run and no processor was free, where the system tells.
        probes: How often one of them let go of the GIL, a few times a second, to see how long it takes to have it back.
        probed_seconds: What that took.
        inline: What was done in the consumer's own thread, while it waited.
        threads: How many threads the loader has.
        processors: How many processors this process may use.
        processes: How many processes decode and map, where threads do not; what they did is counted like that of threads.

    Example:
        >>> tally = Counters(batches=10, rows=640, waited_seconds=0.5, blocked_seconds=0.5, consumer_seconds=1.5)
        >>> tally.rows_per_second, tally.shares.consumer
        (320.0, 0.75)
    """

    batches: int = 0
    rows: int = 0
    units_read: int = 0
    bytes_read: int = 0
    waited_seconds: float = 0.0
    blocked_seconds: float = 0.0
    first_seconds: float = 0.0
    starting_seconds: float = 0.0
    consumer_seconds: float = 0.0
    consumer_processor_seconds: float = 0.0
    busy: Busy = Busy()
    processor: Busy = Busy()
    queued_seconds: float = 0.0
    probes: int = 0
    probed_seconds: float = 0.0
    inline: Busy = Busy()
    threads: int = 1
    processors: int = 1
    processes: int = 0

    @property
    def elapsed_seconds(self) -> float:
        """The time from the first `next()` on."""
        return self.waited_seconds + self.consumer_seconds

    @property
    def rows_per_second(self) -> float:
        """Rows handed out in a second of that time."""
        return _ratio(self.rows, self.elapsed_seconds)

    @property
    def utilisation(self) -> float:
        """The share of that time in which the loader's threads were busy, on average."""
        return min(1.0, _ratio(self.busy.total, (self.threads + self.processes) * self.elapsed_seconds))

    @property
    def shares(self) -> Shares:
        """What the time went by with; where several kinds of work were waited for, each counts by its threads' time."""
        busy, storage = self.busy, self.storage_seconds
        made = {
            "storage": storage,
            "decode": busy.read - storage + busy.decode,
            "gather": busy.gather,
            "map": busy.map,
            "hand_over": busy.hand_over,
        }
        here = {
            "storage": self.inline.read,
            "decode": self.inline.decode,
            "gather": self.inline.gather,
            "map": self.inline.map,
            "hand_over": self.inline.hand_over,
        }
        starting = min(self.starting_seconds, self.blocked_seconds)
        per_second = _ratio(self.blocked_seconds - starting, busy.total)
        waited = {name: here[name] + seconds * per_second for name, seconds in made.items()}
        waited["starting_processes"] = starting
        waited["hand_over"] += max(0.0, self.waited_seconds - sum(waited.values()))
        told = {**waited, "consumer": self.consumer_seconds}
        return Shares(**{name: _ratio(seconds, sum(told.values())) for name, seconds in told.items()})

    @property
    def storage_seconds(self) -> float:
        """What threads waited for storage: the time of reads in which they had no processor and would have used one.

        Threads that gather and decode need no storage. Where they take longer than their time on a processor, because
        others have the processors or the GIL, reads are taken to be slowed down alike.
        """
        plain = self.busy.gather + self.busy.decode + self.busy.hand_over
        slowed = max(1.0, _ratio(plain, self.processor.gather + self.processor.decode + self.processor.hand_over))
        return max(0.0, self.busy.read - slowed * self.processor.read)

    @property
    def gil_seconds(self) -> float:
        """What a thread waits for the GIL each time it wants it, on average; code that holds it gives it up every 0.005 s."""
        return _ratio(self.probed_seconds, self.probes)

    def since(self, earlier: Self) -> Self:
        """Return what has been counted after an earlier look at the same loader.

        Raises:
            ArgumentError: If it is no such look.

        Example:
            >>> Counters(batches=10, rows=640).since(Counters(batches=4, rows=256)).rows
            384
        """
        if not isinstance(earlier, type(self)):
            kind = type(self).__name__
            msg = f"since got {earlier!r}. What stats() returned earlier was expected, a {kind}. Keep it, and give it here."
            raise ArgumentError(msg)
        return self._with(earlier, -1)

    def plus(self, other: Self) -> Self:
        """Return what two iterations did together; threads are those of the first.

        Example:
            >>> Counters(rows=64).plus(Counters(rows=6)).rows
            70
        """
        return self._with(other, 1)

    def _with(self, other: Self, sign: int) -> Self:
        found: dict[str, Any] = {}
        for name in (field.name for field in fields(self)):
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Busy):
                each = (part.name for part in fields(mine))
                found[name] = Busy(**{part: getattr(mine, part) + sign * getattr(theirs, part) for part in each})
            else:
                found[name] = mine if name in ("threads", "processors", "processes") else mine + sign * theirs
        return replace(self, **found)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


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


def advice(tally: Counters) -> str:
    """Return what would make the reading faster, in one sentence.

    Example:
        >>> advice(Counters(batches=9, waited_seconds=0.1, consumer_seconds=9.9))
        'The loader keeps up: the consumer waits 1% of the time, and nothing here would make it faster.'
    """
    case, shares = _case(tally), tally.shares
    share = getattr(shares, case.partition(",")[0], 0.0)
    kind, count = ("processes", tally.processes) if tally.processes else ("threads", tally.threads)
    more = f"more {kind}: .using({kind}={2 * count})"
    return SENTENCES[case].format(waits=1 - shares.consumer, share=share, more=more, threads=2 * tally.threads)


def _case(tally: Counters) -> str:
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


def _longest(tally: Counters) -> str:
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


def _holder(tally: Counters) -> Literal["The consumer", "A map", "Decoding"] | None:
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


def _got(tally: Counters) -> float:
    """Return what all threads spent on processors, the consumer's too."""
    return tally.processor.total + tally.consumer_processor_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats(Counters):
    """What an iteration, or all iterations of a loader, did so far, with what time, and what would make it faster.

    Example:
        >>> stats = Stats(batches=9, rows=90, waited_seconds=0.1, consumer_seconds=9.9)
        >>> stats.remedy
        'The loader keeps up: the consumer waits 1% of the time, and nothing here would make it faster.'
    """

    @property
    def remedy(self) -> str:
        """What would make it faster, in one sentence."""
        return advice(self)

    def as_dict(self) -> dict[str, Any]:
        """Return everything, what follows from the numbers too, as JSON can hold it.

        Example:
            >>> Stats(rows=6, consumer_seconds=2.0).as_dict()["rows_per_second"]
            3.0
        """
        return {
            **asdict(self),
            "elapsed_seconds": self.elapsed_seconds,
            "rows_per_second": self.rows_per_second,
            "utilisation": self.utilisation,
            "shares": asdict(self.shares),
            "remedy": self.remedy,
        }

    def __str__(self) -> str:
        """Return a small table."""
        seconds, stored, ran = self.elapsed_seconds, self.bytes_read, asdict(self.processor)
        kinds = [f"{_said(name)} {took:.3g} s ({ran[name]:.3g})" for name, took in asdict(self.busy).items() if took]
        processes = f" and {self.processes} processes" if self.processes else ""
        shares = {name: share for name, share in asdict(self.shares).items() if share or name != "starting_processes"}
        lines = {
            "handed out": f"{self.batches:,} batches, {self.rows:,} rows, {self.rows_per_second:,.0f} rows/s",
            "read": f"{self.units_read:,} units, {format_bytes(stored)}, {format_bytes(_ratio(stored, seconds))}/s",
            "time": f"{seconds:.3g} s, of which the consumer waited {self.waited_seconds:.3g} s, "
            f"{self.first_seconds:.3g} s of it for the first batch",
            "waiting on": ", ".join(f"{_said(name)} {share:.0%}" for name, share in shares.items()),
            "threads": f"{self.threads}{processes}, busy {self.utilisation:.0%} of the time; "
            f"ready for {self.queued_seconds:.3g} s, and no processor free",
            "busy": f"{', '.join(kinds) or 'with nothing yet'}; in brackets what of it was on a processor",
            "remedy": self.remedy,
        }
        return "\n".join(f"  {name:<11} {text}" for name, text in lines.items())


def format_bytes(count: float) -> str:
    """Return a number of bytes as people say it.

    Example:
        >>> format_bytes(12_300_000)
        '12.3 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 - of the next unit
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _said(name: str) -> str:
    return name.replace("_", " ")
