"""Random numbers as functions of a position, without state; they define the order of rows.

NumPy guarantees the streams of `RandomState` and of the Philox bit generator. The streams of `Generator` can change between
releases, and a saved checkpoint has to give the same order in all of them, so `RandomState` defines the order.
A `Generator` permutes without holding Python's interpreter lock. It is used if a test shows that it gives the same order.
Maps get a `Generator`, whose stream may change with NumPy (`_engine/batch/user_map.py`).
"""

from __future__ import annotations

import hashlib
import struct
from functools import cache

import numpy as np
import numpy.typing as npt

__all__ = ["generator", "key", "permutation"]


COMPARED = (1, 2, 100, 5_000, (1 << 16) + 1)
"""The sizes of the permutations that are compared, once."""

MAX_COMPARED = 1 << 31
"""The size below which positions are drawn from 32 bits; larger permutations are not compared."""


def key(purpose: str, *position: int) -> npt.NDArray[np.uint64]:
    """Return the 128-bit key of a position, as two unsigned words.

    The purpose separates draws at the same position, such as the units of epoch 0 and its rows.

    Example:
        >>> key("units", 0, 0).tolist() == key("units", 0, 1).tolist()
        False
    """
    packed = purpose.encode() + b"\0" + b"".join(struct.pack("<q", place) for place in position)
    digest = hashlib.blake2b(packed, digest_size=16).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def generator(purpose: str, *position: int) -> np.random.RandomState:
    """Return a new generator that depends on its arguments only.

    Example:
        >>> a, b = generator("map", 7, 0, 3), generator("map", 7, 0, 3)
        >>> a.random_sample() == b.random_sample()
        True
    """
    return np.random.RandomState(np.random.Philox(key=key(purpose, *position)))


def permutation(count: int, purpose: str, *position: int) -> npt.NDArray[np.int64]:
    """Return a permutation of `range(count)` that depends on its arguments only.

    Example:
        >>> sorted(permutation(4, "units", 0, 0).tolist())
        [0, 1, 2, 3]
    """
    bits = np.random.Philox(key=key(purpose, *position))
    drawn = np.random.Generator(bits) if count < MAX_COMPARED and _generators_agree() else np.random.RandomState(bits)
    return drawn.permutation(count)


@cache
def _generators_agree() -> bool:
    """Return whether a `Generator` of this NumPy release permutes like `RandomState`."""
    return all(
        np.array_equal(
            np.random.RandomState(np.random.Philox(key=count)).permutation(count),
            np.random.Generator(np.random.Philox(key=count)).permutation(count),
        )
        for count in COMPARED
    )
