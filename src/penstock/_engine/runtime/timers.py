"""Timers: what each thread does, and for how long.

Every thread adds to its own numbers, so nothing is locked; `Meter.stats` sums them. Reading the clock takes less than a tenth
of a microsecond. Reading a thread's processor time takes a microsecond, so that is sampled: until the next sample the share of
processor time is taken to stay the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from threading import get_ident, get_native_id
from time import perf_counter_ns, sleep, thread_time_ns
from typing import TypeVar

from penstock._engine.runtime.threads import default_threads
from penstock.stats import Busy, Stats

Result = TypeVar("Result")

SAMPLE_INTERVAL = 20_000_000
"""Nanoseconds between two samples of a thread's processor time, for each kind of work."""

PROBE_INTERVAL = 200_000_000
"""Nanoseconds between two probes of the GIL: a thread releases it and measures how long it takes to get it back."""

SCHEDSTAT = "/proc/thread-self/schedstat"
"""Linux: how long a thread has run, and how long it was ready to run while no processor was free."""

SECOND = 1e9

# The kinds of work, in the order of the fields of `Busy`. Plain numbers: the lookup of an enum member would take a third as
# long as the timer itself.
READ, GATHER, DECODE, MAP, HAND_OVER = KINDS = range(5)


class Span:
    """The timer of one thread; work inside of other work counts as its own kind.

    Attributes:
        next_kind: The kind of work that begins when the timer is entered.
        kind: The current kind of work, or the last one.
        since: When it began, or went on; 0 while the thread does nothing.
        took: Nanoseconds by kind.
        queued: Nanoseconds in which the thread was ready to run and no processor was free.
        probes: The number of probes of the GIL.
        probed: Nanoseconds that the probes took.
        units: Units read.
        bytes: Their bytes on storage.
    """

    def __init__(self) -> None:
        self.next_kind = self.kind = READ
        self.since, self._ran_at = 0, -1
        self.took, self._sample_due = [0] * len(KINDS), [0] * len(KINDS)
        # Of each kind: processor time up to the last sample, the time taken up to then, and the share of processor time since.
        self._sampled: list[tuple[float, int, float]] = [(0.0, 0, 0.0)] * len(KINDS)
        self._outer: list[int] = []
        self.queued = self.probes = self.probed = self.units = self.bytes = 0
        self._queued_at, self._probe_due = 0, perf_counter_ns() + PROBE_INTERVAL

    def __enter__(self) -> None:
        now = perf_counter_ns()
        if self.since:
            self._outer.append(self.kind)
            self.took[self.kind] += now - self.since
            if self._ran_at >= 0:
                self._sample(now)
        self.kind = kind = self.next_kind
        self.since = now
        if now >= self._sample_due[kind]:
            self._ran_at = thread_time_ns()

    def __exit__(self, *_: object) -> None:
        now, kind = perf_counter_ns(), self.kind
        self.took[kind] += now - self.since
        if self._ran_at >= 0:
            self._sample(now)
        if self._outer:
            self.kind, self.since = self._outer.pop(), now
            return
        self.since = 0
        if now >= self._probe_due:
            self._probe()

    def _sample(self, now: int) -> None:
        """Sample the processor time since the current work began."""
        kind, took = self.kind, now - self.since
        ran = min(took, thread_time_ns() - self._ran_at)
        before, settled, rate = self._sampled[kind]
        before += (self.took[kind] - took - settled) * rate
        self._sampled[kind] = (before + ran, self.took[kind], ran / max(1, took))
        self._ran_at, self._sample_due[kind] = -1, now + SAMPLE_INTERVAL

    def _probe(self) -> None:
        """Measure how long it takes to get the GIL back, less the time in which no processor was free."""
        before, begun = _queued(), perf_counter_ns()
        sleep(0)
        now = perf_counter_ns()
        after = _queued()
        self.probed += max(0, now - begun - (after - before))
        self.probes += 1
        self.queued += max(0, after - self._queued_at)
        self._queued_at, self._probe_due = after, now + PROBE_INTERVAL

    def seconds(self, now: int) -> list[float]:
        """Return the seconds of each kind up to now, current work included."""
        kind, since, took = self.kind, self.since, list(self.took)
        if since:
            took[kind] += max(0, now - since)
        return [nanoseconds / SECOND for nanoseconds in took]

    def on_processor(self) -> list[int]:
        """Return the nanoseconds of processor time of each kind, estimated since the last sample."""
        known = list(self._sampled)
        return [int(ran + (took - settled) * rate) for took, (ran, settled, rate) in zip(self.took, known, strict=True)]

    def take(self) -> list[list[int]]:
        """Return the nanoseconds of each kind, wall time and processor time, and begin at 0 again."""
        found = [self.took, self.on_processor()]
        self.took, self._sampled = [0] * len(KINDS), [(0.0, 0, rate) for _, _, rate in self._sampled]
        return found

    def add(self, taken: list[list[int]]) -> None:
        """Add the times of another timer."""
        for kind, (took, ran) in enumerate(zip(*taken, strict=True)):
            before, settled, rate = self._sampled[kind]
            self.took[kind] += took
            self._sampled[kind] = (before + ran, settled + took, rate)


class Wait:
    """A timer of waiting."""

    def __init__(self) -> None:
        self.since = self.took = 0

    def __enter__(self) -> None:
        self.since = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self.took += perf_counter_ns() - self.since
        self.since = 0

    def begin(self) -> None:
        """Begin a wait that another thread ends."""
        self.since = perf_counter_ns()

    def end(self) -> None:
        """End the wait; nothing if it has ended."""
        since, self.since = self.since, 0
        self.took += perf_counter_ns() - since if since else 0

    def seconds(self, now: int) -> float:
        """Return the seconds up to now, a current wait included."""
        since = self.since
        return (self.took + (max(0, now - since) if since else 0)) / SECOND


class Meter:
    """The timers of one iteration.

    `with meter:` times the consumer's wait for a batch, `with meter.blocked:` the part of it in which other threads work, and
    `with meter.busy(kind):` work of any thread.

    Attributes:
        blocked: The timer of a consumer that waits for other threads; entered inside of the meter.
        starting: The timer of the time before the first worker process can begin.
        surplus: Rows handed out, less those that full batches would have.
        processes: The number of worker processes.

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
        """Begin at 0; no timer runs before the first batch is asked for."""
        self._threads, self.processes = threads, 0
        self._spans: dict[int, Span] = {}
        self._began = self._since = self._waited = self._first = self._ended = self._depth = 0
        self._sample_due = self._ran = self._ran_at = self._ran_by = 0
        self.blocked, self.starting, self._consumers = Wait(), Wait(), set[int]()
        self.surplus = 0

    def busy(self, kind: int) -> Span:
        """Return the timer of this thread, set to a kind of work; it runs while it is entered."""
        span = self._spans.get(get_ident())
        if span is None:
            span = self._spans.setdefault(get_ident(), Span())
        span.next_kind = kind
        return span

    def timed(self, kind: int, task: Callable[[], Result]) -> Callable[[], Result]:
        """Return a task that is timed on the thread where it runs."""

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
        """Return the times of this thread for another process, and begin at 0 again."""
        return self.busy(READ).take()

    def add(self, taken: list[list[int]]) -> None:
        """Add the times of another process to those of this thread."""
        self.busy(READ).add(taken)

    def waited_for(self, step: Callable[[], Result]) -> Callable[[], Result]:
        """Return a step of the consumer that counts as waiting as a whole."""

        def run() -> Result:
            with self:
                return step()

        return run

    def __enter__(self) -> None:
        if self._since:  # nested
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
        if now >= self._sample_due:
            self._sample(now)

    def end(self) -> None:
        """Stop the timers: what the consumer does from now on is not part of the iteration."""
        if not self._ended:
            self._ended = perf_counter_ns()

    @property
    def ended(self) -> bool:
        """Whether the timers were stopped."""
        return self._ended > 0

    def stats(self, *, handed: int, size: int) -> Stats:
        """Return the statistics, given the number of batches handed out and the rows of each."""
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
            probed_seconds=sum(span.probed for span in own) / SECOND,
            inline=_busy(inline),
            threads=self._threads,
            processors=default_threads(),
            processes=self.processes,
        )

    def _sample(self, now: int) -> None:
        """Add the processor time of the consumer's thread since the last sample; the thread may be another one."""
        ran, me = thread_time_ns(), get_native_id()  # get_ident() is reused soon after a thread ends
        self._consumers.add(get_ident())
        if me == self._ran_by:
            self._ran += ran - self._ran_at
        self._ran_at, self._ran_by, self._sample_due = ran, me, now + SAMPLE_INTERVAL
        self._first = self._first or self._waited


def _queued() -> int:
    """Return how long this thread was ready to run while no processor was free; 0 where the system does not say."""
    try:
        file = os.open(SCHEDSTAT, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(file, 100).split()[1])
    finally:
        os.close(file)


def _busy(threads: list[list[float]]) -> Busy:
    """Return the seconds of each kind over several threads."""
    summed = (sum(each) for each in zip([0.0] * len(KINDS), *threads, strict=True))
    return Busy(**{field.name: seconds for field, seconds in zip(fields(Busy), summed, strict=True)})
