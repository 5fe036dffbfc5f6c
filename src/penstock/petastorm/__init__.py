"""The Petastorm door: what Petastorm's users import, on Penstock's engine.

Import paths, names, arguments and defaults are those of Petastorm 0.13.1; `penstock.dropin` makes `import petastorm` mean
this package. `docs/petastorm.md` says what differs.
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
