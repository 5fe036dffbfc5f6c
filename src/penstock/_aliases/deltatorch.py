"""`import deltatorch` where `penstock.dropin` is at work in the process that started this one."""

from __future__ import annotations

import importlib
import sys

if __name__ == "deltatorch":
    sys.modules[__name__] = importlib.import_module("penstock_door").meant(__name__)
