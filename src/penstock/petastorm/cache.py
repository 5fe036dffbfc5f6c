"""`petastorm.cache`: the base class of caches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

__all__ = ["CacheBase", "NullCache"]


class CacheBase(ABC):
    """The base class of caches."""

    @abstractmethod
    def get(self, key: Any, fill_cache_func: Callable[[], Any]) -> Any:
        """Return the cached value of a key; call `fill_cache_func` for it, and cache it, if there is none."""


class NullCache(CacheBase):
    """A cache that stores nothing."""

    def get(self, key: Any, fill_cache_func: Callable[[], Any]) -> Any:  # noqa: ARG002 - nothing is cached
        """Return the result of a function."""
        return fill_cache_func()
