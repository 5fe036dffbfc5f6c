"""Penstock feeds a data lake to the training loop: shuffled, sharded, exactly resumable batches."""

from __future__ import annotations

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING

from penstock import codecs, errors
from penstock._changes import changes
from penstock._open import open
from penstock.adopt import adopt
from penstock.dataset import Dataset
from penstock.errors import PenstockError
from penstock.filters import col
from penstock.loading import loader
from penstock.mix import Mixture, mix
from penstock.policies import AsObjects, Fill, Mask, Offsets, Pad, RaiseIfRagged, RaiseOnNull, Resize
from penstock.schema import Field, Schema
from penstock.sequences import Sequence
from penstock.shuffles import ExactShuffle, InOrder, RowGroupShuffle, WindowShuffle
from penstock.write import write

if TYPE_CHECKING:
    from penstock import torch as torch

__all__ = [
    "AsObjects",
    "Dataset",
    "ExactShuffle",
    "Field",
    "Fill",
    "InOrder",
    "Mask",
    "Mixture",
    "Offsets",
    "Pad",
    "PenstockError",
    "RaiseIfRagged",
    "RaiseOnNull",
    "Resize",
    "RowGroupShuffle",
    "Schema",
    "Sequence",
    "WindowShuffle",
    "adopt",
    "changes",
    "codecs",
    "col",
    "errors",
    "loader",
    "mix",
    "open",
    "write",
]

_ADAPTERS = ("torch",)
_COMING = ("jax", "spark", "tensorflow")


def __getattr__(name: str) -> _ModuleType:
    """Return an adapter, whose framework is loaded when it is first asked for."""
    if name in _ADAPTERS:
        return _import_module(f"{__name__}.{name}")
    if name in _COMING:
        msg = (
            f"penstock.{name}, the adapter of the extra penstock[{name}], is not part of this release. "
            "Until it is, iterate over the dataset or penstock.loader(ds), which give NumPy arrays."
        )
        raise errors.MissingExtraError(msg)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    """Return the public names, and the adapters whose framework is installed."""
    return sorted([*__all__, *(name for name in _ADAPTERS if _find_spec(name) is not None)])


for _name in __all__:
    if hasattr(globals()[_name], "__qualname__"):
        globals()[_name].__module__ = __name__  # so that messages and pickles say penstock.Dataset, wherever it is written
del _name
