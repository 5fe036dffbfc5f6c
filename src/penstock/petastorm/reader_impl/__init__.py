"""`petastorm.reader_impl`: shuffling buffers and serializers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.petastorm._impl.reexports import reexport

if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
