"""PyTorch: a resumable, sharded `DataLoader` of tensors, and datasets for your own `DataLoader`."""

from __future__ import annotations

from penstock.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401 - imported first, so that the error names the missing package
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
