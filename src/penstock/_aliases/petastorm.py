"""`import petastorm` where `penstock.dropin` is at work in the process that started this one."""

from __future__ import annotations

import sys

import penstock.dropin

if __name__ == "petastorm":
    sys.modules[__name__] = penstock.dropin.door(__name__)
