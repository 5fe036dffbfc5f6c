"""`penstock demo`: write a table, train on it, stop inside an epoch, resume, and check that every row was read once."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from pyarrow import fs as pafs

from penstock import codecs
from penstock._engine.parquet.footer import read_schema
from penstock._engine.storage.filesystem import destination
from penstock._open import open as open_table
from penstock.cli._digits import CLASSES, SIDE, drawn
from penstock.cli._facts import table_facts
from penstock.cli._model import Network, new_network
from penstock.cli._progress import bar
from penstock.cli._row_check import RowCheck, compare_ids
from penstock.cli._tables import counted, format_bytes, grouped, say
from penstock.dataset import Dataset
from penstock.errors import ArgumentError, DataError, PenstockError
from penstock.schema import Field, Schema
from penstock.schema.json import KEY, load
from penstock.write import write

__all__ = ["add", "run"]

NAME = "PenstockDemo"
"""The name of the schema, which identifies the table of an earlier demo."""

CHECKPOINT = "_checkpoint"
"""The directory of the checkpoint; readers of tables skip names that start with an underscore."""

MIN_ROWS, BATCH, ROW_GROUP = 100, 32, 500
MAX_NUMBER = 2**62 - 1
"""The limit on all numbers of the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of the demo."""

    directory: Path
    rows: int
    epochs: int
    seed: int
    keep: bool


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The ids and losses of each epoch, across the loaders and networks of the demo."""

    ids: list[list[npt.NDArray[np.int64]]] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    seconds: float = 0.0

    def ids_of(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the ids that were read in an epoch so far, in order."""
        return np.concatenate([np.zeros(0, np.int64), *self.ids[epoch]])


@dataclass(slots=True, kw_only=True)
class Training:
    """A loader and a network, which are replaced by new ones inside an epoch."""

    batches: Any
    network: Network


def add(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command and its options."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo",
        help="make a table of pictures, train on it, stop, resume, and account for every row",
        description="Makes a table of pictures, trains a small network on it, stops in mid-epoch, resumes from the files, and "
        "checks that no row was lost or came twice. It needs no network connection, no Spark and no torch.",
    )
    parser.add_argument(
        "--directory",
        type=_directory,
        default=Path("penstock-demo"),
        help="where the table is written (default: ./penstock-demo)",
    )
    parser.add_argument("--rows", type=_number(MIN_ROWS), default=5000, help="pictures to make (default: %(default)s)")
    parser.add_argument("--epochs", type=_number(1), default=3, help="times to go through them (default: %(default)s)")
    parser.add_argument("--seed", type=_number(0), default=0, help="another seed gives other pictures (default: %(default)s)")
    parser.add_argument(
        "--keep", action=argparse.BooleanOptionalAction, default=True, help="leave the table there at the end (the default)"
    )
    return parser


def _directory(text: str) -> Path:
    """Return a local directory, resolved like in `write`."""
    try:
        place = destination(text)
    except PenstockError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not isinstance(place.filesystem, pafs.LocalFileSystem):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not on this machine; expected a local directory, for the table and a checkpoint beside it"
        )
    plain = Path(text)
    return plain if plain.absolute() == Path(place.path) else Path(place.path)


def _number(minimum: int) -> Any:
    """Return a parser of integers that are `minimum` at least."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if not minimum <= number <= MAX_NUMBER:
            msg = f"{text!r} is not a whole number from {minimum} {'on' if number < minimum else f'to {MAX_NUMBER}'}"
            raise argparse.ArgumentTypeError(msg)
        return number

    return read


def run(options: argparse.Namespace) -> int:
    """Run the demo, and return 0 if every row was read once, else 1.

    Raises:
        ArgumentError: If the directory has files that no demo wrote.
    """
    settings = Settings(**{name: getattr(options, name) for name in ("directory", "rows", "epochs", "seed", "keep")})
    check_place(settings.directory)
    start = perf_counter()
    _make(settings)
    ids = {name: part.select("id").to_arrow()["id"].to_numpy() for name, part in _parts(settings).items()}
    say(
        f"split     by id into {counted(len(ids['train']), 'row')} to learn from and {grouped(len(ids['val']))} to be "
        "examined with"
    )
    ledger = Ledger()
    network = _train(settings, ledger, len(ids["train"]))
    checks = {"split": compare_ids(np.arange(settings.rows), np.concatenate(list(ids.values())))}
    checks |= {f"epoch {epoch + 1}": compare_ids(ids["train"], ledger.ids_of(epoch)) for epoch in range(settings.epochs)}
    complete = _print_checks(checks)
    _print_result(settings, network, ledger, perf_counter() - start)
    if settings.keep:
        say("next      try")
        for command in next_steps(settings.directory):
            say(f"            {command}")
    else:
        shutil.rmtree(settings.directory)
    return 0 if complete else 1


def check_place(directory: Path) -> None:
    """Check that a directory has only files of an earlier demo.

    Raises:
        ArgumentError: If it has other files.
    """
    if not directory.exists():
        return
    files = [path for path in directory.rglob("*") if not path.is_dir()] if directory.is_dir() else [directory]
    foreign = [path for path in files if not _is_ours(path, directory)]
    if foreign:
        msg = (
            f"{str(foreign[0])!r} was not written by an earlier demo. Use --directory with a new or an empty directory, or "
            "with one of an earlier demo, which is overwritten."
        )
        raise ArgumentError(msg)


def _is_ours(path: Path, directory: Path) -> bool:
    """Return whether a file is from a demo: part of a checkpoint, or Parquet with the schema of the demo."""
    if path.parent == directory / CHECKPOINT:
        return True
    try:
        text = (read_schema(str(path.absolute()), pafs.LocalFileSystem()).metadata or {}).get(KEY)
        return text is not None and load(text).name == NAME
    except DataError:
        return False


def _make(settings: Settings) -> None:
    """Write the table, and print its facts."""
    codec, why = _codec()
    start = perf_counter()
    schema = Schema(NAME, [Field("id", np.int64), Field("image", np.uint8, (SIDE, SIDE), codec), Field("label", np.int64)])
    with write(str(settings.directory), schema, mode="overwrite", row_group_rows=ROW_GROUP) as table:
        for batch in drawn(settings.rows, settings.seed):
            table.extend(batch)
    facts = table_facts(open_table(settings.directory))
    say(f"table     {settings.directory.absolute()}")
    say(
        f"          {grouped(settings.rows)} pictures of {CLASSES} digits, {SIDE} x {SIDE}, codec {codec.name}{why}; "
        f"written in {perf_counter() - start:.1f} s"
    )
    say(
        f"          {counted(facts.rows, 'row')}, {counted(facts.files, 'file')}, "
        f"{counted(len(facts.group_rows), 'row group')}, {format_bytes(facts.bytes)}"
    )


def _codec() -> tuple[codecs.Codec, str]:
    """Return the codec of the images, and the reason if it is not PNG."""
    try:
        import_module("cv2")
    except ImportError:
        return codecs.Tensor(), " (OpenCV, which PNG needs, is not installed)"
    return codecs.Png(), ""


def _parts(settings: Settings) -> dict[str, Dataset]:
    """Return the datasets for training and for validation."""
    return open_table(settings.directory).split({"train": 0.8, "val": 0.2}, by="id")


def _begin(settings: Settings) -> Training:
    """Return a new loader and an untrained network."""
    ds = _parts(settings)["train"].shuffle(seed=settings.seed).batch(BATCH, last="uneven")
    network = new_network(settings.seed)
    return Training(batches=network.loader(ds), network=network)


def _train(settings: Settings, ledger: Ledger, due: int) -> Network:
    """Train for all epochs, with a stop and a resume inside one."""
    training = _begin(settings)
    say(f"train     with {training.network.kind}, in batches of {BATCH} rows, shuffled anew in each epoch")
    for epoch in range(settings.epochs):
        ledger.ids.append([])
        ledger.losses.append([])
        if epoch == settings.epochs // 2:
            batches = len(training.batches)
            _learn(training, ledger, due, batches // 2)
            _save(settings, training)
            training = _begin(settings)
            _resume(settings, training)
            say(
                f"stopped   in epoch {epoch + 1} after {batches // 2} of {batches} batches, "
                f"{grouped(len(ledger.ids_of(epoch)))} of {grouped(due)} rows; resumed from {settings.directory / CHECKPOINT}"
            )
        _learn(training, ledger, due)
        say(f"epoch {epoch + 1:<3} loss {np.mean(ledger.losses[epoch]):.3f}")
    return training.network


def _learn(training: Training, ledger: Ledger, due: int, batches: int | None = None) -> None:
    """Train on the rest of an epoch, or on a number of its batches."""
    start = perf_counter()
    with bar(f"epoch {len(ledger.ids)}", due, sum(map(len, ledger.ids[-1]))) as advance:
        for batch in islice(training.batches, batches):
            ledger.losses[-1].append(training.network.learn(batch["image"], batch["label"]))
            ledger.ids[-1].append(_array(batch["id"]).copy())
            advance(len(batch["id"]))
    ledger.seconds += perf_counter() - start


def _array(values: Any) -> npt.NDArray[Any]:
    """Return an array or a tensor as an array."""
    array: npt.NDArray[Any] = values if isinstance(values, np.ndarray) else values.numpy()
    return array


def _save(settings: Settings, training: Training) -> None:
    """Write a checkpoint of the loader and of the network."""
    place = settings.directory / CHECKPOINT
    place.mkdir(exist_ok=True)
    (place / "loader.json").write_text(json.dumps(training.batches.state_dict()))
    np.savez(place / "network.npz", **training.network.state())  # type: ignore[arg-type] # each array has its name


def _resume(settings: Settings, training: Training) -> None:
    """Load the checkpoint."""
    place = settings.directory / CHECKPOINT
    training.batches.load_state_dict(json.loads((place / "loader.json").read_text()))
    with np.load(place / "network.npz", allow_pickle=False) as arrays:
        training.network.load(dict(arrays))


def _print_checks(checks: Mapping[str, RowCheck]) -> bool:
    """Print the checks, and return whether all are complete."""
    for what, check in checks.items():
        say(
            f"check     {what}: {counted(check.due, 'row')} due, {grouped(check.came)} came, {len(check.lost)} lost, "
            f"{len(check.repeated)} twice, {len(check.strange)} strange"
        )
    complete = all(check.complete for check in checks.values())
    verdict = "each row came exactly once in each epoch" if complete else "FAILED: rows were lost, came twice, or were not due"
    say(f"          {verdict}")
    return complete


def _print_result(settings: Settings, network: Network, ledger: Ledger, seconds: float) -> None:
    """Print the accuracy on validation rows, and the speed."""
    right = total = 0
    for batch in network.loader(_parts(settings)["val"].batch(256, last="uneven")):
        right += int((network.guess(batch["image"]) == _array(batch["label"])).sum())
        total += len(batch["label"])
    rate = sum(len(ledger.ids_of(epoch)) for epoch in range(settings.epochs)) / ledger.seconds
    say(f"result    accuracy {right / total:.3f} on {grouped(total)} rows that it did not learn from")
    say(f"          {grouped(rate)} rows/s read, decoded and learned from; {seconds:.1f} s in all")


def next_steps(directory: Path) -> list[str]:
    """Return commands to try on the table."""
    place = shlex.quote(str(directory))

    def python(code: str) -> str:
        opened = f"import penstock as ps; ds = ps.open({json.dumps(str(directory))})"
        return f"{shlex.quote(sys.executable)} -c {shlex.quote(f'{opened}; {code}')}"

    return [
        f"{shlex.quote(sys.executable)} -m penstock inspect {place}",
        python('print(ds.where(ps.col("label") == 7).select("id", "label").head(3))'),
        python("print(ds.shuffle(seed=1).batch(64).explain())"),
        f"{shlex.quote(sys.executable)} -m penstock demo --directory {place} --rows 20000 --epochs 5 --seed 1",
    ]
