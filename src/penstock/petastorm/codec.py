"""The codecs under a name that articles about Petastorm use: `petastorm.codec` for `petastorm.codecs`."""

from __future__ import annotations

from penstock.petastorm.codecs import *  # noqa: F403 - the same names
from penstock.petastorm.codecs import __all__  # noqa: F401 - the same list
