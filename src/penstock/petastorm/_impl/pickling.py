"""Pickles of functions and objects of users for other processes, with the code of modules that those cannot import."""

from __future__ import annotations

from typing import Any

import cloudpickle

from penstock._engine.processes.pickling import dumps_by_value as dumps

__all__ = ["dumps", "loads"]


def loads(data: bytes) -> Any:
    """Return the object of a pickle that another process of this program has sent."""
    return cloudpickle.loads(data)
