"""What Petastorm's users import and Penstock does not do yet: it can be imported, and says so when it is used."""

from __future__ import annotations

from typing import NoReturn

from penstock.errors import MissingExtraError

__all__ = ["refuse"]

LIBRARIES = {"spark": "Spark", "tensorflow": "TensorFlow"}


def refuse(what: str, extra: str, *, instead: str) -> NoReturn:
    """Refuse what needs a library that nothing here uses yet.

    Raises:
        MissingExtraError: Always.
    """
    msg = (
        f"{what} works with {LIBRARIES[extra]}, and this release of Penstock does not do that yet: it will come with "
        f"pip install 'penstock[{extra}]'. Until then use {instead}."
    )
    raise MissingExtraError(msg)
