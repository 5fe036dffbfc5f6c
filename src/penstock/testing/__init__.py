"""For those who write tests or plug-ins: tables in memory, and kits that hold a plug-in to its protocol."""

from __future__ import annotations

from penstock.testing.kits import check_shuffle
from penstock.testing.memory import MemoryFormat, example

__all__ = ["MemoryFormat", "check_shuffle", "example"]
