"""Orders of rows, one module each. Pass one to `Dataset.shuffle`."""

from __future__ import annotations

from penstock.shuffles.exact import ExactShuffle
from penstock.shuffles.in_order import InOrder
from penstock.shuffles.row_groups import RowGroupShuffle
from penstock.shuffles.window import WindowShuffle

__all__ = ["ExactShuffle", "InOrder", "RowGroupShuffle", "WindowShuffle"]
