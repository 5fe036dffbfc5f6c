"""`petastorm.errors`: errors of readers."""

from __future__ import annotations

__all__ = ["NoDataAvailableError"]


class NoDataAvailableError(Exception):
    """There is nothing to read: fewer row groups than shards, or no row that passes the filters."""
