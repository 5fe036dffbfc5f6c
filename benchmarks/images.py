"""Reading of JPEGs, compared with two threads that read and decode the same files, and with other projects.

Every contender yields all images, decoded, shuffled and in batches of 64, three epochs per turn. Contenders run in turn, so
that slow moments of the machine affect all of them. Before the first turn each runs an epoch in which every image is compared
with the original; timed epochs sum labels and some pixels. After that the table is in memory; with a lower memory limit its
files are read in every epoch. Other projects run in their own interpreters, created by `benchmarks/peers/install.sh`; without
them only Penstock is timed.

    python -m benchmarks.images [--peers FOLDER] [--rounds 5] [--work FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from benchmarks import photos
from benchmarks.peers import turns
from benchmarks.peers.turns import Seen
from penstock.codecs import Jpeg
from penstock.schema import Field, Schema
from penstock.write import write

BATCH = 64
GROUP = 125
THREADS = 2
READ, DECODE = "read and decode", "decode only"
TOO_LITTLE = 256 << 20
"""A memory limit of which the table takes more than a quarter, so that it is not cached."""
QUIET = {"LITDATA_DISABLE_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
"""Environment that disables network access and warnings of other projects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A timed contender: `examine` returns labels and means of one epoch, `turn` seconds and sums of a few."""

    name: str
    examine: Callable[[], tuple[list[int], list[float]]]
    turn: Callable[[], tuple[list[float], list[Seen]]]
    versions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to use another project: its interpreter, its file in `benchmarks/peers`, and the variant in that file.

    The `best` settings are always timed, the others with `--all-settings`.
    """

    name: str
    interpreter: str
    module: str
    variant: str
    best: bool = False


SETTINGS = (
    Setting(name="litdata", interpreter="modern", module="litdata", variant="pillow-2", best=True),
    Setting(name="litdata, no workers", interpreter="modern", module="litdata", variant="pillow-0", best=True),
    Setting(name="litdata, our decoder", interpreter="modern", module="litdata", variant="simplejpeg-2", best=True),
    Setting(name="litdata, our decoder, no workers", interpreter="modern", module="litdata", variant="simplejpeg-0", best=True),
    Setting(name="webdataset", interpreter="modern", module="webdataset", variant="rgb8-2", best=True),
    Setting(name="webdataset, torchrgb8", interpreter="modern", module="webdataset", variant="torchrgb8-2"),
    Setting(name="webdataset, no workers", interpreter="modern", module="webdataset", variant="rgb8-0"),
    Setting(name="webdataset, our decoder", interpreter="modern", module="webdataset", variant="simplejpeg-2", best=True),
    Setting(name="datasets", interpreter="modern", module="hf_datasets", variant="pil-2", best=True),
    Setting(name="datasets, torch format", interpreter="modern", module="hf_datasets", variant="torch-2"),
    Setting(name="datasets, numpy format", interpreter="modern", module="hf_datasets", variant="numpy-2"),
    Setting(name="datasets, no workers", interpreter="modern", module="hf_datasets", variant="pil-0"),
    Setting(name="datasets, our decoder", interpreter="modern", module="hf_datasets", variant="simplejpeg-2", best=True),
    Setting(name="petastorm", interpreter="petastorm", module="petastorm", variant="thread-groups", best=True),
    Setting(name="petastorm, queue of 1,000", interpreter="petastorm", module="petastorm", variant="thread-queue"),
    Setting(name="petastorm, processes", interpreter="petastorm", module="petastorm", variant="process-groups"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The process of another project; it answers each line with a line."""

    process: subprocess.Popen[str]
    log: IO[str]

    def ask(self, query: str) -> dict[str, Any]:
        """Return the answer to a line; an empty line returns the first output of the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if query:
            self.process.stdin.write(query + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"A peer ended without an answer. Why is told in {self.log.name}."
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def turn(self) -> tuple[list[float], list[Seen]]:
        """Return seconds and sums of a few epochs."""
        answer = self.ask("time")
        return answer["seconds"], [Seen(**seen) for seen in answer["seen"]]

    def examine(self) -> tuple[list[int], list[float]]:
        """Return labels and means of one epoch."""
        answer = self.ask("examine")
        return answer["labels"], answer["means"]


def start(setting: Setting, interpreters: Path, pictures: Path, work: Path) -> Peer:
    """Write the data of a project, start its process and return it."""
    own = work / f"{setting.module}-{pictures.name}"
    python = interpreters.absolute() / setting.interpreter / "bin" / "python"
    command = [str(python), "-m", f"benchmarks.peers.{setting.module}"]
    where: dict[str, Any] = {"cwd": Path(__file__).parent.parent, "env": {**os.environ, **QUIET}}
    log = (work / f"{setting.module}-{setting.variant}.log").open("w")
    if not own.exists():
        half = own.with_name(f"{own.name}-half")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir()
        written = subprocess.run([*command, "write", str(pictures), str(half)], stdout=log, stderr=log, check=False, **where)
        assert written.returncode == 0, f"{setting.name} could not write its data. Why is told in {log.name}."
        half.rename(own)
    process = subprocess.Popen(
        [*command, setting.variant, str(pictures), str(own)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        **where,
    )
    return Peer(process=process, log=log)


def table(work: Path, pictures: photos.Photos) -> Path:
    """Return a Penstock table with the unchanged bytes of the JPEGs."""
    place = work / f"penstock-{pictures.place.name}"
    schema = Schema("Photos", [Field("image", np.uint8, (photos.SIDE, photos.SIDE, 3), Jpeg(90)), Field("label", np.int64)])
    cells, labels = zip(*pictures.rows, strict=True)
    columns = pa.table({"image": pa.array(cells, pa.binary()), "label": pa.array(labels)})
    write(place, schema, columns, mode="overwrite", row_group_rows=GROUP)
    return place


def read_and_decode(place: Path) -> Iterator[tuple[list[Any], Any]]:
    """Yield the images of each row group as separate arrays."""
    import simplejpeg

    footers = {path: pq.read_metadata(path) for path in sorted(place.glob("*.parquet"))}
    tasks = [(path, at) for path, footer in footers.items() for at in range(footer.num_row_groups)]

    def read(task: tuple[Path, int]) -> tuple[list[Any], Any]:
        found = pq.ParquetFile(task[0], metadata=footers[task[0]]).read_row_group(task[1], use_threads=False)
        pictures = [simplejpeg.decode_jpeg(cell) for cell in found.column("image").to_pylist()]
        return pictures, found.column("label").to_numpy()

    with ThreadPoolExecutor(THREADS) as pool:
        yield from pool.map(read, tasks)


def decode_only(rows: Sequence[tuple[bytes, int]]) -> Seen:
    """Decode JPEGs from memory and return sums of some pixels."""
    import simplejpeg

    def decode(begin: int) -> tuple[int, int]:
        brightness = values = 0
        for cell, _ in rows[begin : begin + BATCH]:
            pixels, count = turns.glance(simplejpeg.decode_jpeg(cell))
            brightness, values = brightness + pixels, values + count
        return brightness, values

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(decode, range(0, len(rows), BATCH)))
    labels = [label for _, label in rows]
    return Seen(
        rows=len(rows),
        labels=sum(labels),
        squares=sum(label * label for label in labels),
        pixels=sum(brightness for brightness, _ in found),
        values=sum(values for _, values in found),
    )


def means_of(rows: Sequence[tuple[bytes, int]]) -> list[float]:
    """Return the mean of all values of each image."""
    import simplejpeg

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda row: float(simplejpeg.decode_jpeg(row[0]).mean()), rows))


def own_contenders(work: Path, pictures: photos.Photos) -> list[Contender]:
    """Return the contenders of this process; the first is the baseline."""
    place = table(work, pictures)
    kept, read = (ps.open(place).shuffle(seed=1).batch(BATCH, last="uneven").using(threads=THREADS) for _ in range(2))

    def ours(name: str, ds: ps.Dataset) -> Contender:
        loader = ps.loader(ds)

        def batches() -> turns.Batches:
            return ((batch["image"], batch["label"]) for batch in loader)

        return Contender(
            name=name,
            examine=lambda: turns.examine(batches()),
            turn=lambda: turns.timed(lambda: turns.look(batches())),
        )

    def bare() -> turns.Batches:
        return read_and_decode(place)

    def already() -> tuple[list[int], list[float]]:
        return [label for _, label in pictures.rows], means_of(pictures.rows)

    return [
        Contender(name=READ, examine=lambda: turns.examine(bare()), turn=lambda: turns.timed(lambda: turns.look(bare()))),
        Contender(name=DECODE, examine=already, turn=lambda: turns.timed(lambda: decode_only(pictures.rows))),
        ours("penstock", kept),
        ours("penstock, from files", read.using(memory_limit=TOO_LITTLE)),
    ]


def check_rows(contender: Contender, expected: Sequence[float]) -> None:
    """Run an epoch and check that every image comes once, with its label, in a shuffled order."""
    labels, means = contender.examine()
    assert sorted(labels) == list(range(len(expected))), f"{contender.name} did not deliver every row once"
    assert labels != sorted(labels) or contender.name in (READ, DECODE), f"{contender.name} did not shuffle"
    for label, mean in zip(labels, means, strict=True):
        # Decoders may differ by rounding; in a dark image a hundredth is less than that.
        assert abs(mean - expected[label]) <= max(expected[label], 25) / 100, (
            f"{contender.name} delivered a picture of mean {mean:.2f} with label {label}, whose mean is {expected[label]:.2f}"
        )


def check_sums(contender: Contender, seen: Seen, expected: Sequence[float]) -> None:
    """Check that a timed epoch delivered all rows."""
    rows = len(expected)
    assert seen.rows == rows, f"{contender.name} delivered {seen.rows} of {rows} rows"
    assert seen.labels == rows * (rows - 1) // 2, f"{contender.name} delivered other labels"
    assert seen.squares == (rows - 1) * rows * (2 * rows - 1) // 6, f"{contender.name} delivered other labels"
    mean = statistics.fmean(expected)
    assert abs(seen.mean - mean) <= mean / 100, f"{contender.name} delivered other pictures: {seen.mean:.2f}, not {mean:.2f}"


def report(seconds: dict[str, list[float]]) -> None:
    """Print a table of ratios."""
    print(f"{'':<34} {'seconds an epoch':>17} {'of ' + READ:>19} {'of ' + DECODE:>16}")
    print(f"{'contender':<34} {'best':>8} {'median':>8} {'best':>10} {'median':>8} {'best':>7} {'median':>8}")
    for name, taken in seconds.items():
        best, median = min(taken), statistics.median(taken)
        shares = [(min(seconds[base]) / best, statistics.median(seconds[base]) / median) for base in (READ, DECODE)]
        (read, read_median), (decode, decode_median) = shares
        print(f"{name:<34} {best:>8.3f} {median:>8.3f} {read:>10.2f} {read_median:>8.2f} {decode:>7.2f} {decode_median:>8.2f}")


def main() -> None:
    """Write the data, run all contenders in turn, and print a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="the folder that benchmarks/peers/install.sh has made")
    parser.add_argument("--all-settings", action="store_true", help="time peers in all settings, not in their best ones")
    parser.add_argument("--only", nargs="*", help="time only contenders whose names begin so, and what they are compared with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "penstock-benchmarks")
    options = parser.parse_args()
    pictures = photos.make(options.work, options.rows)
    expected = means_of(pictures.rows)
    size = sum(len(cell) for cell, _ in pictures.rows) / len(pictures.rows) / 1e3
    print(f"{len(pictures.rows):,} JPEGs of {photos.SIDE} x {photos.SIDE} pixels, {size:.1f} kB each: {pictures.made_of}")
    with ExitStack() as stack:
        contenders = own_contenders(options.work, pictures)
        for setting in SETTINGS if options.peers else ():
            wanted = options.only is None or setting.name.startswith(tuple(options.only))
            if not wanted or not (setting.best or options.all_settings):
                continue
            peer = stack.enter_context(closing(start(setting, options.peers, pictures.place, options.work)))
            versions = ", ".join(f"{name} {version}" for name, version in peer.ask("").items())
            contenders.append(Contender(name=setting.name, examine=peer.examine, turn=peer.turn, versions=versions))
        for contender in contenders:
            check_rows(contender, expected)
        for versions in dict.fromkeys(contender.versions for contender in contenders if contender.versions):
            print(versions)
        seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        for _ in range(options.rounds):
            for contender in contenders:
                taken, seen = contender.turn()
                for epoch in seen:
                    check_sums(contender, epoch, expected)
                seconds[contender.name].append(sum(taken) / len(taken))
    report(seconds)


if __name__ == "__main__":
    main()
