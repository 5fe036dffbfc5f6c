"""Tools for tests and plug-ins: tables in memory, and conformance kits."""

from __future__ import annotations

from penstock.testing.kits import check_shuffle
from penstock.testing.memory import MemoryFormat, example

__all__ = ["MemoryFormat", "check_shuffle", "example"]
