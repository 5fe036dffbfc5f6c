"""What was counted while reading, and with what the time went by, as a value. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from penstock.errors import ArgumentError

__all__ = ["Busy", "Shares", "Tally"]


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
class Tally:
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
        >>> tally = Tally(batches=10, rows=640, waited_seconds=0.5, blocked_seconds=0.5, consumer_seconds=1.5)
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
            >>> Tally(batches=10, rows=640).since(Tally(batches=4, rows=256)).rows
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
            >>> Tally(rows=64).plus(Tally(rows=6)).rows
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
