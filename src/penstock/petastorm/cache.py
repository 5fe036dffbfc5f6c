"""Caches of `petastorm.cache`: something that is not computed twice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

__all__ = ["CacheBase", "NullCache"]


class CacheBase(ABC):
    """What caches have in common."""

    @abstractmethod
    def get(self, key: Any, fill_cache_func: Callable[[], Any]) -> Any:
        """Return what is kept under a key; where nothing is, what a function makes, which is kept."""


class NullCache(CacheBase):
    """A cache that keeps nothing."""

    def get(self, key: Any, fill_cache_func: Callable[[], Any]) -> Any:  # noqa: ARG002 - nothing is kept
        """Return what a function makes."""
        return fill_cache_func()
