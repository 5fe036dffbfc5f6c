"""Which module a name means that `penstock.dropin` stands in for, in a process that another one started.

Whatever Python is started finds it on `PYTHONPATH`, so it takes nothing for granted: neither Penstock nor what that needs.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

HOME = "PENSTOCK_DROPIN"
"""The variable that says in which environment of Python `penstock.dropin` was imported."""


def meant(name: str) -> Any:
    """Return the module that a name means here.

    In the environment that `penstock.dropin` was imported in it is Penstock's. In any other it is what is installed there under
    that name, and Penstock's only where nothing is.
    """
    elsewhere = os.environ.get(HOME, sys.prefix) != sys.prefix
    # Spark may have brought this folder to another place as well.
    others = [entry for entry in sys.path if not (Path(entry) / Path(__file__).name).exists()]
    real = PathFinder.find_spec(name, others) if elsewhere else None
    if real is not None and real.loader is not None:
        found = module_from_spec(real)
        sys.modules[name] = found
        real.loader.exec_module(found)
        return found
    try:
        from penstock import dropin
    except ImportError as error:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name) from error
    return dropin.compatibility_module(name)
