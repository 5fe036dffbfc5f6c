"""Codec classes of users, as codecs of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from penstock.codecs import CellCodec, Codec
from penstock.errors import ArgumentError
from penstock.petastorm.codecs import DataframeColumnCodec
from penstock.petastorm.unischema import UnischemaField
from penstock.schema import Field

__all__ = ["engine_codecs"]


def engine_codecs(given: Sequence[Any]) -> list[type[Codec]]:
    """Return codec classes of the engine.

    Raises:
        ArgumentError: If one is not a codec class of Penstock or of Petastorm.
    """
    return [_engine_codec(codec) for codec in given]


def _engine_codec(given: Any) -> type[Codec]:
    if isinstance(given, type) and issubclass(given, Codec):
        return given
    if isinstance(given, type) and issubclass(given, DataframeColumnCodec):
        return _adapt(given)  # type: ignore[arg-type] # classes have a hash
    msg = (
        f"codecs got {given!r}. Classes derived from petastorm.codecs.DataframeColumnCodec, or from penstock.codecs.CellCodec, "
        "were expected. Give them: codecs=[TheCodec]."
    )
    raise ArgumentError(msg)


@lru_cache(maxsize=256)
def _adapt(kind: type[DataframeColumnCodec]) -> type[Codec]:
    """Return a codec of the engine that decodes with a codec class of Petastorm. Datasets store its name."""

    @dataclass(frozen=True)
    class Adapted(CellCodec):
        name: ClassVar[str] = f"{kind.__module__}.{kind.__qualname__}"
        theirs: Any
        stored: str = ""

        @classmethod
        def of(cls, options: Mapping[str, Any]) -> Codec:
            codec = kind.__new__(kind)
            for option, value in options.items():
                setattr(codec, f"_{option}", value)
            return cls(codec, repr(dict(options)))

        def options(self) -> Mapping[str, Any]:
            return {name.removeprefix("_"): value for name, value in vars(self.theirs).items()}

        def encode(self, field: Field, cell: Any) -> bytes:
            return bytes(self.theirs.encode(_field(field, self.theirs), cell))

        def decode(self, field: Field, cell: memoryview) -> Any:
            return self.theirs.decode(_field(field, self.theirs), bytes(cell))

    return Adapted


def _field(field: Field, codec: Any) -> UnischemaField:
    return UnischemaField(field.name, field.dtype.type, field.shape, codec, field.nullable)
