"""Statistics of reading as a value: counts, times, and advice to make it faster. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self

from penstock.errors import ArgumentError

__all__ = ["Busy", "Shares", "Stats", "advice", "format_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Seconds by kind of work.

    Attributes:
        read: Reading units: waiting for storage, and decompressing Parquet.
        gather: Ordering rows and copying them to their windows.
        decode: Converting cells to arrays.
        map: Running functions of the user.
        hand_over: Converting batches for the framework.
    """

    read: float = 0.0
    gather: float = 0.0
    decode: float = 0.0
    map: float = 0.0
    hand_over: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all seconds."""
        return self.read + self.gather + self.decode + self.map + self.hand_over


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of the time between the first `next()` and the last; their sum is 1.

    In all but the last, the consumer waited.

    Attributes:
        storage: For bytes from storage.
        decode: For Parquet to be decompressed, and cells to be converted to arrays.
        gather: For rows to be put in order.
        map: For functions of the user.
        hand_over: For batches to be converted for the framework, and for the loader's own bookkeeping.
        starting_processes: For processes to start, if there are any.
        consumer: The consumer worked and did not wait.
    """

    storage: float = 0.0
    decode: float = 0.0
    gather: float = 0.0
    map: float = 0.0
    hand_over: float = 0.0
    starting_processes: float = 0.0
    consumer: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The counts and times of an iteration, or of all iterations of a loader, so far, with advice.

    Attributes:
        batches: Batches returned, or rows if they are returned one by one.
        rows: Rows returned, counted before maps.
        units_read: Units read, including those read ahead.
        bytes_read: The stored size of the columns of these units.
        waited_seconds: The time the consumer waited in `next()`; views of a window in memory are not counted.
        blocked_seconds: The part of it in which its thread only waited for other threads.
        first_seconds: The part of it before the first batch of each iteration.
        starting_seconds: The time in each iteration before the first process could begin, if there are processes.
        consumer_seconds: The time the consumer took between calls of `next()`, until now if it has not finished.
        consumer_processor_seconds: The processor time of its thread in all this.
        busy: The time of the loader's threads.
        processor: The part of it on a processor, without waiting for storage or the GIL.
        queued_seconds: The time in which threads were ready to run but had no processor, if the system reports it.
        probes: How often a thread released the GIL, a few times a second, to measure how long it waits to get it back.
        probed_seconds: The sum of these waits.
        inline: The time of work in the consumer's own thread, while it waited.
        threads: The number of the loader's threads.
        processors: The number of processors that this process may use.
        processes: The number of processes that decode and map instead of threads; their work is counted like that of threads.

    Example:
        >>> stats = Stats(batches=10, rows=640, waited_seconds=0.5, blocked_seconds=0.5, consumer_seconds=1.5)
        >>> stats.rows_per_second, stats.shares.consumer
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
        """The time since the first `next()`."""
        return self.waited_seconds + self.consumer_seconds

    @property
    def rows_per_second(self) -> float:
        """Rows returned per second of that time."""
        return _ratio(self.rows, self.elapsed_seconds)

    @property
    def utilisation(self) -> float:
        """The share of that time in which the loader's threads were busy, on average."""
        return min(1.0, _ratio(self.busy.total, (self.threads + self.processes) * self.elapsed_seconds))

    @property
    def shares(self) -> Shares:
        """The shares of that time; waits are divided among kinds of work by the time of the threads."""
        busy, storage = self.busy, self.storage_seconds
        threads = {**asdict(busy), "storage": storage, "decode": busy.read - storage + busy.decode}
        inline = {**asdict(self.inline), "storage": self.inline.read}
        del threads["read"]
        starting = min(self.starting_seconds, self.blocked_seconds)
        per_second = _ratio(self.blocked_seconds - starting, busy.total)
        seconds = {name: inline[name] + took * per_second for name, took in threads.items()}
        seconds["starting_processes"] = starting
        seconds["hand_over"] += max(0.0, self.waited_seconds - sum(seconds.values()))
        seconds["consumer"] = self.consumer_seconds
        total = sum(seconds.values())
        return Shares(**{name: _ratio(took, total) for name, took in seconds.items()})

    @property
    def storage_seconds(self) -> float:
        """The time in which threads waited for storage: reads without a processor, less the time in which they lacked one.

        Gathering and decoding need no storage. If they take longer than their processor time, other threads have the
        processors or the GIL. Reads are assumed to be slowed down by the same factor.
        """
        plain = self.busy.gather + self.busy.decode + self.busy.hand_over
        slowed = max(1.0, _ratio(plain, self.processor.gather + self.processor.decode + self.processor.hand_over))
        return max(0.0, self.busy.read - slowed * self.processor.read)

    @property
    def gil_seconds(self) -> float:
        """The average time that a thread waits for the GIL; a thread that computes releases it every 0.005 s."""
        return _ratio(self.probed_seconds, self.probes)

    def since(self, earlier: Self) -> Self:
        """Return the statistics since an earlier call of `stats()` of the same loader.

        Raises:
            ArgumentError: If the argument is not of that type.

        Example:
            >>> Stats(batches=10, rows=640).since(Stats(batches=4, rows=256)).rows
            384
        """
        if not isinstance(earlier, type(self)):
            msg = f"since() got {earlier!r}; expected a {type(self).__name__} that stats() returned earlier. Keep it."
            raise ArgumentError(msg)
        return self._combine(earlier, -1)

    def plus(self, other: Self) -> Self:
        """Return the sum of two iterations, with the numbers of threads of the first.

        Example:
            >>> Stats(rows=64).plus(Stats(rows=6)).rows
            70
        """
        return self._combine(other, 1)

    def _combine(self, other: Self, sign: int) -> Self:
        changes: dict[str, Any] = {}
        for name in (field.name for field in fields(self)):
            own, others = getattr(self, name), getattr(other, name)
            if isinstance(own, Busy):
                kinds = (field.name for field in fields(own))
                changes[name] = Busy(**{kind: getattr(own, kind) + sign * getattr(others, kind) for kind in kinds})
            elif name not in ("threads", "processors", "processes"):
                changes[name] = own + sign * others
        return replace(self, **changes)

    @property
    def remedy(self) -> str:
        """Advice to make it faster, in one sentence."""
        return advice(self)

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers, also the derived ones, as JSON values.

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
        seconds, stored, processor = self.elapsed_seconds, self.bytes_read, asdict(self.processor)
        kinds = [f"{_words(name)} {took:.3g} s ({processor[name]:.3g})" for name, took in asdict(self.busy).items() if took]
        processes = f" and {self.processes} processes" if self.processes else ""
        shares = {name: share for name, share in asdict(self.shares).items() if share or name != "starting_processes"}
        lines = {
            "handed out": f"{self.batches:,} batches, {self.rows:,} rows, {self.rows_per_second:,.0f} rows/s",
            "read": f"{self.units_read:,} units, {format_bytes(stored)}, {format_bytes(_ratio(stored, seconds))}/s",
            "time": f"{seconds:.3g} s, of which the consumer waited {self.waited_seconds:.3g} s, "
            f"{self.first_seconds:.3g} s of it for the first batch",
            "waiting on": ", ".join(f"{_words(name)} {share:.0%}" for name, share in shares.items()),
            "threads": f"{self.threads}{processes}, busy {self.utilisation:.0%} of the time; "
            f"ready for {self.queued_seconds:.3g} s, and no processor free",
            "busy": f"{', '.join(kinds) or 'with nothing yet'}; in brackets what of it was on a processor",
            "remedy": self.remedy,
        }
        return "\n".join(f"  {name:<11} {text}" for name, text in lines.items())


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


KEEPS_UP = 0.1
"""The share of waiting below which a faster loader would gain the consumer next to nothing."""

MOSTLY = 0.5

GIL_SECONDS = 0.00025
"""The average wait for the GIL from which other threads hold it to compute; about 0.0001 if none does."""

ONE_PROCESSOR = 1.3
"""The most processors that all threads use, on average, if one of them has the GIL and the others wait for it."""

MIN_PROBES = 5

QUEUED_THREADS = 0.25
"""The average number of threads that must be ready without a processor, before the advice mentions it."""

ALL_PROCESSORS = 0.8
"""The share of the processors that counts as all of them."""

SENTENCES = {
    "nothing": "No batch was returned yet; check again after some batches.",
    **{
        code: f'{code} is Python-bound and holds the GIL; use processes: .using(workers="processes").'
        for code in ("The consumer", "A map", "Decoding")
    },
    "keeps up": "The loader keeps up: the consumer waits {waits:.0%} of the time, and nothing here would make it faster.",
    "crowded": (
        "Threads wait for processors that other programs use, or that a quota withholds; free some, or use another machine."
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
        "row groups, or from a copy that is closer."
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
        "The consumer waits for batches to be converted {share:.0%} of the time; use larger batches, or fewer columns by "
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


def advice(stats: Stats) -> str:
    """Return advice to make reading faster, in one sentence.

    Example:
        >>> advice(Stats(batches=9, waited_seconds=0.1, consumer_seconds=9.9))
        'The loader keeps up: the consumer waits 1% of the time, and nothing here would make it faster.'
    """
    case, shares = _case(stats), stats.shares
    share = getattr(shares, case.partition(",")[0], 0.0)
    kind, count = ("processes", stats.processes) if stats.processes else ("threads", stats.threads)
    more = f"more {kind}: .using({kind}={2 * count})"
    return SENTENCES[case].format(waits=1 - shares.consumer, share=share, more=more, threads=2 * stats.threads)


def _case(stats: Stats) -> str:
    """Return the key of the first sentence that applies."""
    gil_holder = None if stats.processes else _gil_holder(stats)
    blocked, all_processors = stats.blocked_seconds, ALL_PROCESSORS * stats.processors * stats.elapsed_seconds
    idle = not stats.processes and stats.busy.total < MOSTLY * stats.threads * blocked
    queued = stats.queued_seconds >= QUEUED_THREADS * stats.elapsed_seconds
    cases = (
        ("nothing", not stats.batches),
        (gil_holder or "", gil_holder is not None),
        ("keeps up", stats.waited_seconds < KEEPS_UP * stats.elapsed_seconds),
        ("starting_processes", 0 < MOSTLY * (1 - stats.shares.consumer) <= stats.shares.starting_processes),
        ("crowded", queued and _processor_seconds(stats) < all_processors),
        ("first", stats.first_seconds >= MOSTLY * stats.waited_seconds),
        ("idle", idle and blocked >= MOSTLY * stats.waited_seconds),
    )
    return next((name for name, applies in cases if applies), None) or _longest_wait(stats)


def _longest_wait(stats: Stats) -> str:
    """Return the kind of work with the longest waits, and why more threads would not help, if they would not."""
    waited = asdict(stats.shares)
    del waited["consumer"]
    longest = max(waited, key=lambda name: float(waited[name]))
    if longest == "map" and stats.inline.map > stats.busy.map:
        return "map, inline"
    full = (stats.processes or stats.threads) >= stats.processors
    if longest == "map" and full and stats.processor.map >= MOSTLY * stats.busy.map:
        return "map, full"
    return "decode, full" if longest == "decode" and full else longest


def _gil_holder(stats: Stats) -> Literal["The consumer", "A map", "Decoding"] | None:
    """Return the code that holds the GIL while threads wait for it: the one with the most processor time."""
    elapsed, used, processor = stats.elapsed_seconds, _processor_seconds(stats), stats.processor
    contended = stats.probes >= MIN_PROBES and stats.gil_seconds >= GIL_SECONDS
    if not contended or stats.processors == 1 or used > ONE_PROCESSOR * elapsed:
        return None
    # A consumer that does not wait gains only if threads take much of the GIL from it.
    if stats.waited_seconds < KEEPS_UP * elapsed and processor.total - processor.read < QUEUED_THREADS * elapsed:
        return None
    if stats.consumer_processor_seconds >= MOSTLY * used:
        return "The consumer"
    return "A map" if processor.map >= MOSTLY * processor.total else "Decoding"


def _processor_seconds(stats: Stats) -> float:
    """Return the processor time of all threads, with the consumer's."""
    return stats.processor.total + stats.consumer_processor_seconds


def format_bytes(count: float) -> str:
    """Return a number of bytes in readable units.

    Example:
        >>> format_bytes(12_300_000)
        '12.3 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 - the factor of units
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _words(name: str) -> str:
    return name.replace("_", " ")
