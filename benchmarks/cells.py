"""Decoding of array cells, compared with `numpy.load` for each cell and a stack of the results.

Batches of cells are taken at random from several Arrow chunks and decoded into one reused array, as in the engine.
Contenders run in turn, so that slow moments of the machine affect all of them. All must give the same values.

    python -m benchmarks.cells [--rounds 15]
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._blobs import Blobs
from penstock.codecs import CellCodec, Npy, Npz, Raw
from penstock.schema import Field

CHUNKS = 8
MAX_CELL_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One kind of cells, one batch size, and the target for the speed-up."""

    codec: CellCodec
    dtype: str
    shape: tuple[int, ...]
    batch: int
    asked: int | None = None
    shuffled: bool = True
    chunks: int = CHUNKS

    @property
    def title(self) -> str:
        """A one-line description of the cells."""
        order = "shuffled" if self.shuffled else "in order"
        cell = f"{type(self.codec).__name__} {self.dtype} {self.shape}"
        return f"{cell}, {self.batch:,} {order} of {self.chunks} chunks"


CONTESTS = (
    Contest(codec=Npy(), dtype="uint8", shape=(128, 120, 3), batch=64, asked=8),
    Contest(codec=Npy(), dtype="uint8", shape=(128, 120, 3), batch=1024, asked=8),
    Contest(codec=Npy(), dtype="float32", shape=(16, 16), batch=64, asked=40),
    Contest(codec=Npy(), dtype="float32", shape=(16, 16), batch=1024, asked=40),
    Contest(codec=Npy(), dtype="float32", shape=(16, 16), batch=64, chunks=128),
    Contest(codec=Npy(), dtype="float32", shape=(16, 16), batch=1024, shuffled=False),
    Contest(codec=Npy(), dtype="float32", shape=(3,), batch=1024),
    Contest(codec=Npz(), dtype="float32", shape=(16, 16), batch=64),
    Contest(codec=Raw(), dtype="float32", shape=(16, 16), batch=1024),
    Contest(codec=Raw(), dtype="uint8", shape=(128, 120, 3), batch=64),
)


def stored(contest: Contest, field: Field) -> Blobs:
    """Return cells in several chunks of Arrow memory."""
    random = np.random.default_rng(0)
    size = int(np.prod(contest.shape)) * np.dtype(contest.dtype).itemsize
    each = max(contest.batch, min(4_000, MAX_CELL_BYTES // size)) // contest.chunks
    parts = []
    for _ in range(contest.chunks):
        values = random.integers(0, 100, (each, *contest.shape)).astype(contest.dtype)
        parts.append(Blobs.of(contest.codec.encode_column(field, list(values))))
    return Blobs.joined(parts)


def loaded(contest: Contest, cells: list[bytes]) -> npt.NDArray[Any]:
    """Return the cells decoded by NumPy, one by one."""
    if isinstance(contest.codec, Npy):
        return np.stack([np.load(io.BytesIO(cell)) for cell in cells])
    if isinstance(contest.codec, Npz):
        return np.stack([np.load(io.BytesIO(cell))["arr"] for cell in cells])
    return np.stack([np.frombuffer(cell, contest.dtype).reshape(contest.shape) for cell in cells])


def seconds(contest: Contest, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds per batch of NumPy and of Penstock, for each round."""
    field = Field("x", contest.dtype, contest.shape, contest.codec)
    cells = stored(contest, field)
    out = np.zeros((contest.batch, *contest.shape), contest.dtype)
    batches = max(1, 2048 // contest.batch)
    theirs, ours = [], []
    for turn in range(rounds):
        random = np.random.default_rng(turn)
        starts = random.integers(0, len(cells) - contest.batch + 1, batches)
        rows = [
            random.integers(0, len(cells), contest.batch) if contest.shuffled else start + np.arange(contest.batch)
            for start in starts
        ]
        taken = [cells.take(some) for some in rows]
        given = [[bytes(picked[row]) for row in range(len(picked))] for picked in taken]
        begin = time.perf_counter()
        for batch in given:
            expected = loaded(contest, batch)
        theirs.append((time.perf_counter() - begin) / batches)
        del given
        begin = time.perf_counter()
        for picked in taken:
            contest.codec.decode_into(field, picked, out)
        ours.append((time.perf_counter() - begin) / batches)
        np.testing.assert_array_equal(out, expected)
    return theirs, ours


def main() -> None:
    """Print a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(f"{'cells':<66} {'us a cell':>10} {'best':>7} {'median':>7} {'asked':>6}")
    for contest in CONTESTS:
        theirs, ours = seconds(contest, options.rounds)
        best, median = min(theirs) / min(ours), statistics.median(theirs) / statistics.median(ours)
        each = statistics.median(ours) / contest.batch * 1e6
        print(f"{contest.title:<66} {each:>10.2f} {best:>6.1f}x {median:>6.1f}x {contest.asked or '-':>6}")


if __name__ == "__main__":
    main()
