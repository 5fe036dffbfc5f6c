"""PyTorch: a `DataLoader` of tensors, sharded, resumable and as fast as the engine, and datasets for loaders of others."""

from __future__ import annotations

from penstock.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401 - asked for first, so that what is missing is said
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    _msg = f"{__name__} needs torch, which is not installed. Install it: pip install 'penstock[torch]'."
    raise MissingExtraError(_msg) from error

from penstock.torch._loader import IterableDataset, Loader, MapDataset, loader

__all__ = ["IterableDataset", "Loader", "MapDataset", "loader"]

for _name in __all__:
    globals()[_name].__module__ = __name__  # so that messages and pickles name the public module
del _name
