"""Noisy images of digits, drawn by code, so that the demo needs no download."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.randomness import generator

__all__ = ["CLASSES", "SIDE", "drawn"]

Floats: TypeAlias = npt.NDArray[np.float64]

SIDE = 28
"""The height and width of an image."""

CLASSES = 10

ROWS_AT_ONCE = 500

# The ten digits, seven lines of five dots each.
FONT = (
    ".###. #...# #..## #.#.# ##..# #...# .###.",
    "..#.. .##.. ..#.. ..#.. ..#.. ..#.. .###.",
    ".###. #...# ....# ...#. ..#.. .#... #####",
    ".###. #...# ....# ..##. ....# #...# .###.",
    "...#. ..##. .#.#. #..#. ##### ...#. ...#.",
    "##### #.... ####. ....# ....# #...# .###.",
    "..##. .#... #.... ####. #...# #...# .###.",
    "##### ....# ...#. ..#.. .#... .#... .#...",
    ".###. #...# #...# .###. #...# #...# .###.",
    ".###. #...# #...# .#### ....# ...#. .##..",
)


def drawn(rows: int, seed: int) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yield batches of `id`, `image` and `label`; a row does not depend on the number of rows.

    Example:
        >>> first = next(drawn(3, seed=0))
        >>> first["image"].shape, first["id"].tolist()
        ((3, 28, 28), [0, 1, 2])
    """
    for start in range(0, rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, rows - start)
        images, labels = _batch(seed, start // ROWS_AT_ONCE)
        yield {"id": np.arange(start, start + count), "image": images[:count], "label": labels[:count]}


def _batch(seed: int, number: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the images and labels of one batch."""
    random = generator("demo pictures", seed, number)
    labels = random.randint(0, CLASSES, ROWS_AT_ONCE)
    across, down = _coordinates(random)
    ink = _sampled(_glyphs(), labels, across, down) * random.uniform(0.45, 1.0, (ROWS_AT_ONCE, 1, 1))
    paper = random.uniform(0.0, 0.3, (ROWS_AT_ONCE, 1, 1))
    noisy = paper + ink * (1 - paper) + random.normal(0.0, 0.12, ink.shape)
    return (noisy.clip(0, 1) * 255).astype(np.uint8), labels.astype(np.int64)


def _coordinates(random: np.random.RandomState) -> tuple[Floats, Floats]:
    """Return the glyph coordinates of each pixel, in dots from the centre, after a random rotation, slant, scale and shift."""

    def each(low: float, high: float) -> Floats:
        return random.uniform(low, high, (ROWS_AT_ONCE, 1, 1))

    turn, lean, size, narrow = each(-0.2, 0.2), each(-0.25, 0.25), each(2.3, 3.2), each(0.9, 1.1)
    middle = (SIDE - 1) / 2
    x = np.arange(SIDE)[None, None, :] - middle - each(-2, 2)
    y = np.arange(SIDE)[None, :, None] - middle - each(-2, 2)
    down = (np.cos(turn) * y - np.sin(turn) * x) / size
    across = (np.cos(turn) * x + np.sin(turn) * y) / (size * narrow) + lean * down
    return across, down


def _glyphs() -> Floats:
    """Return the digits as arrays of ones and zeros, with a margin of zeros."""
    dots = [[[dot == "#" for dot in line] for line in digit.split()] for digit in FONT]
    return np.pad(np.array(dots, dtype=np.float64), ((0, 0), (2, 2), (2, 2)))


def _sampled(glyphs: Floats, labels: npt.NDArray[Any], across: Floats, down: Floats) -> Floats:
    """Return the values of glyphs at coordinates, with linear interpolation between dots."""
    _, height, width = glyphs.shape
    y, x = (down + (height - 1) / 2).clip(0, height - 1.001), (across + (width - 1) / 2).clip(0, width - 1.001)
    top, left = y.astype(np.int64), x.astype(np.int64)
    low, right = y - top, x - left
    which = labels[:, None, None]
    above = glyphs[which, top, left] * (1 - right) + glyphs[which, top, left + 1] * right
    below = glyphs[which, top + 1, left] * (1 - right) + glyphs[which, top + 1, left + 1] * right
    ink: Floats = above * (1 - low) + below * low
    return ink
