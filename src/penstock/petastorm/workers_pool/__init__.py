"""`petastorm.workers_pool`: pools of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.petastorm._impl.reexports import reexport

__all__ = ["EmptyResultError", "TimeoutWaitingForResultError", "VentilatedItemProcessedMessage"]


class EmptyResultError(RuntimeError):
    """A pool has no more results."""


class TimeoutWaitingForResultError(RuntimeError):
    """A pool has returned no result for too long."""


class VentilatedItemProcessedMessage:
    """An item of a pool was processed."""


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
