"""`petastorm.codec`: another name of `petastorm.codecs`, which articles about Petastorm use."""

from __future__ import annotations

from penstock.petastorm.codecs import *  # noqa: F403 - the same names
from penstock.petastorm.codecs import __all__  # noqa: F401 - the same list
