"""Functions and objects of users, packed for another process: with their code, where that would not find it."""

from __future__ import annotations

from typing import Any

import cloudpickle

from penstock._engine.processes.pickling import dumps_by_value as packed

__all__ = ["packed", "unpacked"]


def unpacked(data: bytes) -> Any:
    """Return an object that this program packed, in another of its processes."""
    return cloudpickle.loads(data)
