"""PyTorch: a `DataLoader` of tensors, sharded, resumable and as fast as the engine, and datasets for loaders of others."""

from __future__ import annotations

from penstock.torch._datasets import IterableDataset, MapDataset
from penstock.torch._loader import Loader, loader

__all__ = ["IterableDataset", "Loader", "MapDataset", "loader"]

for _name in __all__:
    globals()[_name].__module__ = __name__  # so that messages and pickles name the front door
del _name
