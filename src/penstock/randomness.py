"""All randomness of Penstock: a function of a position, never a state.

NumPy has frozen the streams of `RandomState` and of the Philox bit generator, while those of `Generator`
may change between releases. A saved checkpoint must mean the same order for ever, so the former say what is drawn.
A `Generator` permutes without holding Python's interpreter, which other threads need meanwhile; it does so wherever it is seen
to agree.
"""

from __future__ import annotations

import hashlib
import struct
from functools import cache

import numpy as np
import numpy.typing as npt

__all__ = ["generator", "key", "permutation"]


COMPARED = (1, 2, 100, 5_000, (1 << 16) + 1)
"""Permutations of so many are drawn both ways, once, to see whether they agree."""

FEW = 1 << 31
"""Of so many, places are drawn from 32 bits; more are nowhere compared."""


def key(purpose: str, *position: int) -> npt.NDArray[np.uint64]:
    """Return the 128-bit key that belongs to a position, as two unsigned words.

    The purpose keeps draws apart that stand at the same position (the units of epoch 0, its rows).

    Example:
        >>> key("units", 0, 0).tolist() == key("units", 0, 1).tolist()
        False
    """
    packed = purpose.encode() + b"\0" + b"".join(struct.pack("<q", place) for place in position)
    digest = hashlib.blake2b(packed, digest_size=16).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def generator(purpose: str, *position: int) -> np.random.RandomState:
    """Return a fresh generator that depends on nothing but its arguments.

    Example:
        >>> a, b = generator("map", 7, 0, 3), generator("map", 7, 0, 3)
        >>> a.random_sample() == b.random_sample()
        True
    """
    return np.random.RandomState(np.random.Philox(key=key(purpose, *position)))


def permutation(count: int, purpose: str, *position: int) -> npt.NDArray[np.int64]:
    """Return a permutation of `range(count)` that depends on nothing but its arguments.

    Example:
        >>> sorted(permutation(4, "units", 0, 0).tolist())
        [0, 1, 2, 3]
    """
    bits = np.random.Philox(key=key(purpose, *position))
    drawn = np.random.Generator(bits) if count < FEW and _generators_agree() else np.random.RandomState(bits)
    return drawn.permutation(count)


@cache
def _generators_agree() -> bool:
    """Return whether, in this release of NumPy, a `Generator` permutes as `RandomState` does for ever."""
    return all(
        np.array_equal(
            np.random.RandomState(np.random.Philox(key=count)).permutation(count),
            np.random.Generator(np.random.Philox(key=count)).permutation(count),
        )
        for count in COMPARED
    )
