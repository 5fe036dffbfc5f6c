"""Types of Spark where Spark is not installed: names and options, which say all that a reader needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import MissingExtraError
from penstock.formats.petastorm import SparkType

__all__ = ["StandIn", "pyspark_types", "spark_name", "spark_options", "to_spark"]


class StandIn:
    """A type of Spark as a dataset stores it, that becomes the real one where somebody asks for that."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """Store what it is."""
        self._name, self._options = name, dict(options)

    @property
    def stored(self) -> SparkType:
        """What a dataset stores of it."""
        return SparkType(self._name, self._options)

    def __eq__(self, other: object) -> bool:
        """Return whether it stands for the same type."""
        return isinstance(other, StandIn) and self.stored == other.stored

    def __hash__(self) -> int:
        """Return a hash that equal ones share."""
        return hash(self._name)

    def __repr__(self) -> str:
        """Return what Spark calls it."""
        given = ", ".join(str(self._options[name]) for name in ("precision", "scale") if name in self._options)
        return f"{self._name}({given})"


def pyspark_types(what: str) -> Any:
    """Return the module `pyspark.sql.types`.

    Raises:
        MissingExtraError: If Spark is not installed.
    """
    try:
        from pyspark.sql import types
    except ModuleNotFoundError as error:
        msg = f"{what} needs pyspark, which is not installed. Install it: pip install 'penstock[spark]'."
        raise MissingExtraError(msg) from error
    return types


def spark_name(kind: Any) -> str:
    """Return what Spark calls a type, given as an object, a class or a stand-in."""
    if isinstance(kind, StandIn):
        return kind.stored.name
    return kind.__name__ if isinstance(kind, type) else type(kind).__name__


def spark_options(kind: Any) -> dict[str, Any]:
    """Return what a type of Spark was made with, as a dataset stores it."""
    if isinstance(kind, StandIn):
        return dict(kind.stored.options)
    if spark_name(kind) == "DecimalType" and not isinstance(kind, type):
        return {"precision": int(kind.precision), "scale": int(kind.scale), "hasPrecisionInfo": True}
    return {}


def to_spark(kind: Any) -> Any:
    """Return a type of Spark itself.

    Raises:
        MissingExtraError: If Spark is not installed.
    """
    if not isinstance(kind, StandIn):
        return kind
    made = getattr(pyspark_types(f"The type {kind}"), kind.stored.name)
    if kind.stored.name == "DecimalType":
        options = kind.stored.options
        return made(options.get("precision", 10), options.get("scale", 0))
    return made()
