"""All randomness of Penstock: a function of a position, never a state.

NumPy has frozen the streams of `RandomState` and of the Philox bit generator, while those of `Generator`
may change between releases. A saved checkpoint must mean the same order for ever, so only the former are used.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import numpy.typing as npt

__all__ = ["generator", "key", "permutation"]


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
    return generator(purpose, *position).permutation(count)
