"""The import of a package that `penstock.dropin` replaces, in a process that another one has started.

Any Python on the machine may find this module on `PYTHONPATH`, so it must work without Penstock and its dependencies.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

HOME = "PENSTOCK_DROPIN"
"""The environment variable with the Python environment that `penstock.dropin` was imported in."""


def import_module(name: str) -> Any:
    """Return the module of Penstock for a name; in another Python environment, the installed package if there is one."""
    is_other_environment = os.environ.get(HOME, sys.prefix) != sys.prefix
    # Spark may have copied this folder to another directory too.
    path = [entry for entry in sys.path if not (Path(entry) / Path(__file__).name).exists()]
    real = PathFinder.find_spec(name, path) if is_other_environment else None
    if real is not None and real.loader is not None:
        module = module_from_spec(real)
        sys.modules[name] = module
        real.loader.exec_module(module)
        return module
    try:
        import numpy as np  # noqa: F401 - `import penstock` alone loads none of its dependencies
        import pyarrow as pa  # noqa: F401 - the same

        from penstock import dropin
    except ImportError as error:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name) from error
    return dropin.compatibility_module(name)
