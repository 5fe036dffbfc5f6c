"""Where the time of reading goes, told: as a table, as JSON, and as advice. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from penstock._engine.advice import advice
from penstock._engine.tally import Tally

__all__ = ["Stats", "told_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats(Tally):
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
            "read": f"{self.units_read:,} units, {told_bytes(stored)}, {told_bytes(stored / seconds if seconds else 0.0)}/s",
            "time": f"{seconds:.3g} s, of which the consumer waited {self.waited_seconds:.3g} s, "
            f"{self.first_seconds:.3g} s of it for the first batch",
            "waiting on": ", ".join(f"{_said(name)} {share:.0%}" for name, share in shares.items()),
            "threads": f"{self.threads}{processes}, busy {self.utilisation:.0%} of the time; "
            f"ready for {self.queued_seconds:.3g} s, and no processor free",
            "busy": f"{', '.join(kinds) or 'with nothing yet'}; in brackets what of it was on a processor",
            "remedy": self.remedy,
        }
        return "\n".join(f"  {name:<11} {text}" for name, text in lines.items())


def told_bytes(count: float) -> str:
    """Return a number of bytes as people say it.

    Example:
        >>> told_bytes(12_300_000)
        '12.3 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 - of the next unit
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _said(name: str) -> str:
    return name.replace("_", " ")
