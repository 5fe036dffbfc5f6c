"""Spark types without Spark: names and options, which are all that a reader needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import MissingExtraError
from penstock.formats.petastorm import SparkType

__all__ = ["StoredSparkType", "pyspark_types", "spark_name", "spark_options", "to_spark"]


class StoredSparkType:
    """A Spark type as a dataset stores it; `to_spark` returns the type itself.

    Args:
        name: The name of its class.
        options: The arguments of its constructor.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """Store the name and the options."""
        self._name, self._options = name, dict(options)

    @property
    def stored(self) -> SparkType:
        """The stored form."""
        return SparkType(self._name, self._options)

    def __eq__(self, other: object) -> bool:
        """Return whether the other one is the same type."""
        return isinstance(other, StoredSparkType) and self.stored == other.stored

    def __hash__(self) -> int:
        """Return a hash that equal ones share."""
        return hash(self._name)

    def __repr__(self) -> str:
        """Return the expression of the type in Spark."""
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
    """Return the name of a Spark type, given as an object or a class."""
    if isinstance(kind, StoredSparkType):
        return kind.stored.name
    return kind.__name__ if isinstance(kind, type) else type(kind).__name__


def spark_options(kind: Any) -> dict[str, Any]:
    """Return the options of a Spark type, as a dataset stores them."""
    if isinstance(kind, StoredSparkType):
        return dict(kind.stored.options)
    if spark_name(kind) == "DecimalType" and not isinstance(kind, type):
        return {"precision": int(kind.precision), "scale": int(kind.scale), "hasPrecisionInfo": True}
    return {}


def to_spark(kind: Any) -> Any:
    """Return the type of pyspark.

    Raises:
        MissingExtraError: If Spark is not installed.
    """
    if not isinstance(kind, StoredSparkType):
        return kind
    spark_type = getattr(pyspark_types(f"The type {kind}"), kind.stored.name)
    if kind.stored.name == "DecimalType":
        options = kind.stored.options
        return spark_type(options.get("precision", 10), options.get("scale", 0))
    return spark_type()
