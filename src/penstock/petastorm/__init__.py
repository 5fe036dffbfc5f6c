"""The names of Petastorm, on the engine of Penstock.

Import paths, names, arguments and defaults are those of Petastorm 0.13.1. With `penstock.dropin`, `import petastorm` imports
this package. `docs/petastorm.md` lists the differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.petastorm._impl.reexports import reexport
from penstock.petastorm.errors import NoDataAvailableError
from penstock.petastorm.reader import Reader, make_batch_reader, make_reader
from penstock.petastorm.transform import TransformSpec

__all__ = ["NoDataAvailableError", "Reader", "TransformSpec", "make_batch_reader", "make_reader"]

__version__ = "0.13.1"


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
