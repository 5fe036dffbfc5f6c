"""`petastorm.namedtuple_gt_255_fields`: named tuples with more than 255 fields, which Python supports today."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable
from typing import Any

__all__ = ["namedtuple_gt_255_fields"]


def namedtuple_gt_255_fields(
    typename: str,
    field_names: str | Iterable[str],
    verbose: bool = False,  # noqa: ARG001 - there is no source to print
    rename: bool = False,
    module: str | None = None,
) -> Any:
    """Return a named tuple with any number of fields."""
    return namedtuple(typename, field_names, rename=rename, module=module)  # noqa: PYI024 - names are given
