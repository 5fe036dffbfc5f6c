"""Pools of `petastorm.workers_pool`: what works on row groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.petastorm._impl.reexports import passed_on

__all__ = ["EmptyResultError", "TimeoutWaitingForResultError", "VentilatedItemProcessedMessage"]


class EmptyResultError(RuntimeError):
    """There is nothing more to come from a pool."""


class TimeoutWaitingForResultError(RuntimeError):
    """A pool has made nothing for too long."""


class VentilatedItemProcessedMessage:
    """Says that an item that was given to a pool has been worked on."""


if not TYPE_CHECKING:
    __getattr__ = passed_on(__name__)
