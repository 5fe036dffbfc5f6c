"""Counting what threads do, and for how long, at a cost that cannot be measured.

Every thread adds to numbers of its own, so nothing is locked, and whoever asks adds them up. A look at the clock takes less
than a tenth of a microsecond, and is taken twice per unit and twice per step of a batch. The clock of a thread's time on a
processor takes a microsecond, so it is looked at now and then, and what follows is taken to be alike until the next time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from threading import get_ident, get_native_id
from time import perf_counter_ns, sleep, thread_time_ns
from typing import TypeVar

from penstock._engine.runtime.stats import Busy, Stats
from penstock._engine.runtime.threads import default_threads

__all__ = ["DECODE", "GATHER", "HAND_OVER", "MAP", "READ", "Meter"]

Result = TypeVar("Result")

BETWEEN = 20_000_000
"""Nanoseconds between two looks at a thread's time on a processor, for each kind of work."""

BETWEEN_PROBES = 200_000_000
"""Nanoseconds between two times that a thread lets go of the GIL, and sees how long it takes to have it back."""

QUEUE = "/proc/thread-self/schedstat"
"""Where Linux tells how long a thread has run, and how long it was ready to run while no processor was free."""

SECOND = 1e9

# The kinds of `Busy` in their order. Plain numbers: to look a member of an enum up takes a third of what running a clock takes.
READ, GATHER, DECODE, MAP, HAND_OVER = KINDS = range(5)


class Span:
    """The numbers of one thread, and the clock of what it does right now; work inside of other work counts as its own kind.

    Attributes:
        coming: What it does when it is entered next.
        kind: What it does, or did last.
        since: When that began, or went on; 0 while it does nothing.
        took: Nanoseconds by kind.
        queued: Nanoseconds in which the thread was ready to run, and no processor was free.
        probes: How often it let go of the GIL, to see how long it takes to have it back.
        held_up: Nanoseconds that it took.
        units: Units read.
        bytes: What they take on storage.
    """

    def __init__(self) -> None:
        self.coming = self.kind = READ
        self.since, self._ran_at = 0, -1
        self.took, self._due = [0] * len(KINDS), [0] * len(KINDS)
        # Of each kind: the nanoseconds on a processor up to the last look, what had been taken then, and the share since.
        self._known: list[tuple[float, int, float]] = [(0.0, 0, 0.0)] * len(KINDS)
        self._outer: list[int] = []
        self.queued = self.probes = self.held_up = self.units = self.bytes = 0
        self._queued_at, self._probe_due = 0, perf_counter_ns() + BETWEEN_PROBES  # a loader's thread is as young as this

    def __enter__(self) -> None:
        now = perf_counter_ns()
        if self.since:
            self._outer.append(self.kind)
            self.took[self.kind] += now - self.since
            if self._ran_at >= 0:
                self._look(now)
        self.kind = kind = self.coming
        self.since = now
        if now >= self._due[kind]:
            self._ran_at = thread_time_ns()

    def __exit__(self, *_: object) -> None:
        now, kind = perf_counter_ns(), self.kind
        self.took[kind] += now - self.since
        if self._ran_at >= 0:
            self._look(now)
        if self._outer:
            self.kind, self.since = self._outer.pop(), now
            return
        self.since = 0
        if now >= self._probe_due:
            self._probe()

    def _look(self, now: int) -> None:
        """Look at the processor's clock, which was looked at when this began."""
        kind, took = self.kind, now - self.since
        ran = min(took, thread_time_ns() - self._ran_at)
        before, settled, rate = self._known[kind]
        before += (self.took[kind] - took - settled) * rate
        self._known[kind] = (before + ran, self.took[kind], ran / max(1, took))
        self._ran_at, self._due[kind] = -1, now + BETWEEN

    def _probe(self) -> None:
        """See how long it takes to have the GIL back, less the time in which no processor was free."""
        before, begun = _queued(), perf_counter_ns()
        sleep(0)
        now = perf_counter_ns()
        after = _queued()
        self.held_up += max(0, now - begun - (after - before))
        self.probes += 1
        self.queued += max(0, after - self._queued_at)
        self._queued_at, self._probe_due = after, now + BETWEEN_PROBES

    def seconds(self, now: int) -> list[float]:
        """Return the seconds of each kind up to now, what goes on included."""
        kind, since, took = self.kind, self.since, list(self.took)
        if since:
            took[kind] += max(0, now - since)
        return [nanoseconds / SECOND for nanoseconds in took]

    def on_processor(self) -> list[int]:
        """Return the nanoseconds of each kind on a processor; those since the last look are taken to be like those at it."""
        known = list(self._known)
        return [int(ran + (took - settled) * rate) for took, (ran, settled, rate) in zip(self.took, known, strict=True)]

    def take(self) -> list[list[int]]:
        """Return the nanoseconds of each kind, all and on a processor, and begin anew."""
        found = [self.took, self.on_processor()]
        self.took, self._known = [0] * len(KINDS), [(0.0, 0, rate) for _, _, rate in self._known]
        return found

    def add(self, taken: list[list[int]]) -> None:
        """Add what another has taken."""
        for kind, (took, ran) in enumerate(zip(*taken, strict=True)):
            before, settled, rate = self._known[kind]
            self.took[kind] += took
            self._known[kind] = (before + ran, settled + took, rate)


class Wait:
    """The clock of those who wait for others."""

    def __init__(self) -> None:
        self.since = self.took = 0

    def __enter__(self) -> None:
        self.since = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self.took += perf_counter_ns() - self.since
        self.since = 0

    def begin(self) -> None:
        """Begin, where another thread will end it."""
        self.since = perf_counter_ns()

    def end(self) -> None:
        """End what was begun; a second time, nothing."""
        since, self.since = self.since, 0
        self.took += perf_counter_ns() - since if since else 0

    def seconds(self, now: int) -> float:
        """Return the seconds up to now, a wait that goes on included."""
        since = self.since
        return (self.took + (max(0, now - since) if since else 0)) / SECOND


class Meter:
    """What one iteration counts; entered and left whenever the consumer asks for something that is not in memory yet.

    Attributes:
        blocked: The clock of a consumer that waits for other threads; entered inside of the meter.
        starting: The clock of what passes before the first of several processes can begin.
        surplus: Rows handed out, less those that full batches would have.
        processes: How many processes decode and map.

    Example:
        >>> meter = Meter(threads=2)
        >>> with meter, meter.blocked:
        ...     pass
        >>> with meter.busy(READ):
        ...     meter.read(1, 1000)
        >>> stats = meter.stats(handed=1, size=64)
        >>> stats.rows, stats.bytes_read, stats.threads
        (64, 1000, 2)
    """

    def __init__(self, *, threads: int = 1) -> None:
        """Begin at nothing; no clock runs before something is asked for."""
        self._threads, self.processes = threads, 0
        self._spans: dict[int, Span] = {}
        self._began = self._since = self._waited = self._first = self._ended = self._depth = 0
        self._due = self._ran = self._ran_at = self._ran_by = 0
        self.blocked, self.starting, self._consumers = Wait(), Wait(), set[int]()
        self.surplus = 0

    def busy(self, kind: int) -> Span:
        """Return the clock of this thread, set to a kind of work; it runs while it is entered."""
        span = self._spans.get(get_ident())
        if span is None:
            span = self._spans.setdefault(get_ident(), Span())
        span.coming = kind
        return span

    def timed(self, kind: int, task: Callable[[], Result]) -> Callable[[], Result]:
        """Return a task that is timed where it runs."""

        def run() -> Result:
            with self.busy(kind):
                return task()

        return run

    def read(self, units: int, stored: int) -> None:
        """Count units that were read, and their bytes on storage; called by a thread that has been busy."""
        span = self._spans[get_ident()]
        span.units += units
        span.bytes += stored

    def taken(self) -> list[list[int]]:
        """Return the nanoseconds that this thread has taken, all and on a processor, and begin anew; for another process."""
        return self.busy(READ).take()

    def add(self, taken: list[list[int]]) -> None:
        """Add what another process has taken, as if this thread had."""
        self.busy(READ).add(taken)

    def waited_for(self, step: Callable[[], Result]) -> Callable[[], Result]:
        """Return a step of the consumer's, all of which counts as waiting."""

        def run() -> Result:
            with self:
                return step()

        return run

    def __enter__(self) -> None:
        if self._since:  # a step of a step
            self._depth += 1
            return
        self._since = perf_counter_ns()
        if not self._began:
            self._began = self._since
            self._consumers.add(get_ident())

    def __exit__(self, *_: object) -> None:
        if self._depth:
            self._depth -= 1
            return
        now = perf_counter_ns()
        self._waited += now - self._since
        self._since = 0
        if now >= self._due:
            self._look(now)

    def end(self) -> None:
        """Stop the clock: what the consumer does from now on is no part of the iteration."""
        if not self._ended:
            self._ended = perf_counter_ns()

    @property
    def ended(self) -> bool:
        """Whether the clock has been stopped."""
        return self._ended > 0

    def stats(self, *, handed: int, size: int) -> Stats:
        """Return what has been counted, given how many batches of how many rows have been handed out."""
        now = perf_counter_ns()
        began, since = self._began or now, self._since
        waited = self._waited + (max(0, now - since) if since else 0)
        elapsed = max(waited, (self._ended or now) - began)
        spans = list(self._spans.values())
        own = [span for thread, span in list(self._spans.items()) if thread not in self._consumers]
        inline = [span.seconds(now) for thread, span in list(self._spans.items()) if thread in self._consumers]
        return Stats(
            batches=handed,
            rows=handed * size + self.surplus,
            units_read=sum(span.units for span in spans),
            bytes_read=sum(span.bytes for span in spans),
            waited_seconds=waited / SECOND,
            blocked_seconds=self.blocked.seconds(now),
            starting_seconds=self.starting.seconds(now),
            first_seconds=(self._first or waited) / SECOND,
            consumer_seconds=(elapsed - waited) / SECOND,
            consumer_processor_seconds=self._ran / SECOND,
            busy=_busy([span.seconds(now) for span in own]),
            processor=_busy([[ran / SECOND for ran in span.on_processor()] for span in own]),
            queued_seconds=sum(span.queued for span in own) / SECOND,
            probes=sum(span.probes for span in own),
            probed_seconds=sum(span.held_up for span in own) / SECOND,
            inline=_busy(inline),
            threads=self._threads,
            processors=default_threads(),
            processes=self.processes,
        )

    def _look(self, now: int) -> None:
        """Add what the consumer's thread has run since the last look; it may be another thread than then."""
        ran, me = thread_time_ns(), get_native_id()  # the other number of a thread is soon that of another
        self._consumers.add(get_ident())
        if me == self._ran_by:
            self._ran += ran - self._ran_at
        self._ran_at, self._ran_by, self._due = ran, me, now + BETWEEN
        self._first = self._first or self._waited


def _queued() -> int:
    """Return how long this thread has been ready to run while no processor was free; 0 where the system does not tell."""
    try:
        told = os.open(QUEUE, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(told, 100).split()[1])
    finally:
        os.close(told)


def _busy(threads: list[list[float]]) -> Busy:
    """Return the seconds of each kind over several threads."""
    summed = (sum(each) for each in zip([0.0] * len(KINDS), *threads, strict=True))
    return Busy(**{field.name: seconds for field, seconds in zip(fields(Busy), summed, strict=True)})
