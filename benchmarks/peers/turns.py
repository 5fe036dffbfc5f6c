"""How a contender is timed and checked, in whatever interpreter it runs in.

A peer runs as a process of its own. It prints one line of JSON that says what it is; then each line that it is given,
`examine` or `time`, is answered by one line of JSON. Between its turns it does nothing. Start of the process, imports and
the writing of its data are in no number.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks.photos import SIDE

Batches: TypeAlias = Iterable[tuple[Any, Any]]
"""Pictures and their labels, as arrays, tensors or lists of arrays."""

EPOCHS = 3
STEP = 509
"""Every so many values of a picture are looked at while the clock runs; a prime, so that all colours and columns are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an epoch brought, in numbers that do not depend on order: how many rows, their labels, some of their pixels.

    Example:
        >>> Seen(rows=1, labels=7, squares=49, pixels=300, values=3).mean
        100.0
    """

    rows: int
    labels: int
    squares: int
    pixels: int
    values: int

    @property
    def mean(self) -> float:
        """The mean of the values looked at."""
        return self.pixels / max(self.values, 1)


def glance(picture: Any) -> tuple[int, int]:
    """Return the sum of some values of a picture, and of how many.

    Example:
        >>> glance(np.full((2, 509), 3, np.uint8))
        (6, 2)
    """
    some = picture.reshape(-1)[::STEP]
    return int(some.sum()), len(some)


def look(batches: Batches) -> Seen:
    """Return what all batches held.

    Example:
        >>> look([(np.zeros((2, 509), np.uint8), [1, 3])])
        Seen(rows=2, labels=4, squares=10, pixels=0, values=2)
    """
    rows = labels = squares = pixels = values = 0
    for pictures, numbers in batches:
        found = np.asarray(numbers)
        rows, labels, squares = rows + len(found), labels + int(found.sum()), squares + int((found * found).sum())
        shown = pictures if isinstance(pictures, list) else np.asarray(pictures)
        assert len(shown) == len(found), f"{len(shown)} pictures came with {len(found)} labels"
        for picture in shown:
            brightness, count = glance(picture)
            pixels, values = pixels + brightness, values + count
    return Seen(rows=rows, labels=labels, squares=squares, pixels=pixels, values=values)


def examine(batches: Batches) -> tuple[list[int], list[float]]:
    """Return the labels in the order they came in, and the mean of all values of each picture; refuse other sizes."""
    labels: list[int] = []
    means: list[float] = []
    for pictures, numbers in batches:
        labels.extend(int(number) for number in np.asarray(numbers))
        for picture in pictures:
            values = np.asarray(picture)
            assert values.dtype == np.uint8, f"a picture came as {values.dtype}"
            assert values.size == 3 * SIDE * SIDE, f"a picture came with {values.shape} pixels"
            means.append(float(values.mean()))
    return labels, means


def timed(epoch: Callable[[], Seen]) -> tuple[list[float], list[Seen]]:
    """Return how long each of a few epochs took, and what each brought."""
    seconds, seen = [], []
    for _ in range(EPOCHS):
        start = time.perf_counter()
        seen.append(epoch())
        seconds.append(time.perf_counter() - start)
    return seconds, seen


def photos(place: Path) -> Iterator[tuple[Path, int]]:
    """Yield the file and the label of each picture that `benchmarks.photos` has made."""
    for file in sorted(place.glob("*.jpg")):
        yield file, int(file.stem)


def decode_with_simplejpeg(cell: Any) -> Any:
    """Return the pixels of a JPEG, decoded by the library that Penstock uses."""
    import simplejpeg

    return simplejpeg.decode_jpeg(cell)


def decode_with_pillow(cell: Any) -> Any:
    """Return the pixels of a JPEG, decoded by the library that most projects use."""
    import io

    from PIL import Image

    return np.array(Image.open(io.BytesIO(cell)).convert("RGB"))


def serve(
    packages: Sequence[str],
    write: Callable[[Path, Path], None],
    variants: dict[str, Callable[[Path], Callable[[], Batches]]],
) -> None:
    """Be the process of a peer: write its data and end, or say what it is and run epochs when told to.

    Writing has a process of its own, so that what it starts or sets in its libraries is gone when epochs are timed.

    Args:
        packages: Whose versions matter.
        write: What takes the folder of pictures and an empty one, and writes the peer's own data to the latter.
        variants: By name, what takes the folder of the peer's data and returns what starts an epoch.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("variant", choices=["write", *variants])
    parser.add_argument("photos", type=Path)
    parser.add_argument("own", type=Path)
    options = parser.parse_args()
    if options.variant == "write":
        write(options.photos, options.own)
        return
    # Libraries print what they like; answers go out where nothing else does.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    epoch = variants[options.variant](options.own)
    versions = {"python": platform.python_version(), **{package: version(package) for package in packages}}
    print(json.dumps(versions), file=answers)
    for line in sys.stdin:
        if line.strip() == "examine":
            labels, means = examine(epoch())
            print(json.dumps({"labels": labels, "means": means}), file=answers)
        else:
            seconds, seen = timed(lambda: look(epoch()))
            print(json.dumps({"seconds": seconds, "seen": [asdict(one) for one in seen]}), file=answers)
