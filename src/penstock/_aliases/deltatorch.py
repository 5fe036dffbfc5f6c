"""`import deltatorch` where `penstock.dropin` is at work in the process that started this one."""

from __future__ import annotations

import sys

import penstock.dropin

if __name__ == "deltatorch":
    sys.modules[__name__] = penstock.dropin.door(__name__)
