"""The error of functions of Petastorm that Penstock has only by name."""

from __future__ import annotations

from typing import NoReturn

from penstock.errors import MissingExtraError

__all__ = ["raise_not_supported"]

LIBRARIES = {"spark": "Spark", "tensorflow": "TensorFlow"}


def raise_not_supported(what: str, extra: str, *, instead: str) -> NoReturn:
    """Raise the error of a function that is not supported yet.

    Raises:
        MissingExtraError: Always.
    """
    msg = (
        f"{what} works with {LIBRARIES[extra]}, and this release of Penstock does not do that yet: it will come with "
        f"pip install 'penstock[{extra}]'. Until then use {instead}."
    )
    raise MissingExtraError(msg)
