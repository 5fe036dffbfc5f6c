"""Penstock feeds a data lake to the training loop: shuffled, sharded, exactly resumable batches."""

from __future__ import annotations

from penstock import errors
from penstock.dataset import Dataset, loader
from penstock.errors import PenstockError
from penstock.filters import col
from penstock.opening import open
from penstock.schema import Field, Schema
from penstock.shuffles import ExactShuffle, InOrder, RowGroupShuffle, WindowShuffle

__all__ = [
    "Dataset",
    "ExactShuffle",
    "Field",
    "InOrder",
    "PenstockError",
    "RowGroupShuffle",
    "Schema",
    "WindowShuffle",
    "col",
    "errors",
    "loader",
    "open",
]

for _name in __all__:
    if hasattr(globals()[_name], "__qualname__"):
        globals()[_name].__module__ = __name__  # so that messages and pickles say penstock.Dataset, wherever it is written
del _name
