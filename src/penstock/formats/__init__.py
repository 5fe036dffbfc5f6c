"""Table formats, one file each; a file's `FORMAT` is found by being there."""

from __future__ import annotations

import importlib
import pkgutil

from penstock.protocols import TableFormat

__all__ = ["known_formats"]


def known_formats() -> list[TableFormat]:
    """Return the table formats that can be recognised, in the order of their `PRECEDENCE`."""
    modules = [
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
        if not found.name.startswith("_")
    ]
    return [module.FORMAT for module in sorted(modules, key=lambda module: module.PRECEDENCE)]
