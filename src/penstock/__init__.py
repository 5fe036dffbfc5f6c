"""Penstock feeds a data lake to the training loop: shuffled, sharded, exactly resumable batches.

Public names are imported when they are first used, so that `import penstock` takes next to no time.
"""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from penstock import codecs as codecs
    from penstock import errors as errors
    from penstock import torch as torch
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

_MODULES = {
    "_changes": ("changes",),
    "_open": ("open",),
    "adopt": ("adopt",),
    "dataset": ("Dataset",),
    "errors": ("PenstockError",),
    "filters": ("col",),
    "loading": ("loader",),
    "mix": ("Mixture", "mix"),
    "policies": ("AsObjects", "Fill", "Mask", "Offsets", "Pad", "RaiseIfRagged", "RaiseOnNull", "Resize"),
    "schema": ("Field", "Schema"),
    "sequences": ("Sequence",),
    "shuffles": ("ExactShuffle", "InOrder", "RowGroupShuffle", "WindowShuffle"),
    "write": ("write",),
}
"""The module of each public name."""

_PLACES = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = ("codecs", "errors")
_ADAPTERS = ("torch",)
_COMING = ("jax", "spark", "tensorflow")


class _Package(_ModuleType):
    """A package with functions that are called as the module they are in: importing the module must not hide `penstock.mix`."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, _ModuleType) and _PLACES.get(name) == name:
            value = _public(value, name)
        super().__setattr__(name, value)


def _public(module: _ModuleType, name: str) -> _Any:
    """Return a public name, which says in messages and pickles that it is of this package."""
    value = getattr(module, name)
    value.__module__ = __name__
    return value


def __getattr__(name: str) -> _Any:
    """Return a public name, or an adapter, whose framework is loaded when it is first used."""
    if name in _PLACES:
        value = _public(_import_module(f"{__name__}.{_PLACES[name]}"), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES or name in _ADAPTERS:
        return _import_module(f"{__name__}.{name}")
    if name in _COMING:
        from penstock.errors import MissingExtraError

        msg = (
            f"penstock.{name}, the adapter of the extra penstock[{name}], is not part of this release. "
            "Until it is, iterate over the dataset or penstock.loader(ds), which give NumPy arrays."
        )
        raise MissingExtraError(msg)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    """Return the public names, and the adapters whose framework is installed."""
    return sorted([*__all__, *(name for name in _ADAPTERS if _find_spec(name) is not None)])


_sys.modules[__name__].__class__ = _Package
