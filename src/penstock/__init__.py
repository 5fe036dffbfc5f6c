"""Penstock feeds a data lake to the training loop: shuffled, sharded, exactly resumable batches."""

from __future__ import annotations

from penstock import errors
from penstock.dataset import Dataset
from penstock.errors import PenstockError
from penstock.filters import col
from penstock.loading import loader
from penstock.opening import open
from penstock.policies import AsObjects, Fill, Mask, Offsets, Pad, RaiseIfRagged, RaiseOnNull
from penstock.schema import Field, Schema
from penstock.shuffles import ExactShuffle, InOrder, RowGroupShuffle, WindowShuffle

__all__ = [
    "AsObjects",
    "Dataset",
    "ExactShuffle",
    "Field",
    "Fill",
    "InOrder",
    "Mask",
    "Offsets",
    "Pad",
    "PenstockError",
    "RaiseIfRagged",
    "RaiseOnNull",
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
