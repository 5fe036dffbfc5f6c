"""`import deltatorch` in processes that a process with `penstock.dropin` has started."""

from __future__ import annotations

import importlib
import sys

if __name__ == "deltatorch":
    sys.modules[__name__] = importlib.import_module("penstock_alias").import_module(__name__)
