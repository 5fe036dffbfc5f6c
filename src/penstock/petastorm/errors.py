"""The errors of `petastorm.errors`."""

from __future__ import annotations

__all__ = ["NoDataAvailableError"]


class NoDataAvailableError(Exception):
    """There is nothing to read: fewer row groups than shards, or rows of which none passes, for ever."""
