"""Codecs of users, as the engine decodes with them: one of ours, or a class derived from Petastorm's."""

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
    """Return classes of codecs as the engine takes them.

    Raises:
        ArgumentError: If something is none.
    """
    return [_engine_codec(one) for one in given]


def _engine_codec(given: Any) -> type[Codec]:
    if isinstance(given, type) and issubclass(given, Codec):
        return given
    if isinstance(given, type) and issubclass(given, DataframeColumnCodec):
        return _adapted(given)  # type: ignore[arg-type] # classes have a hash
    msg = (
        f"codecs got {given!r}. Classes derived from petastorm.codecs.DataframeColumnCodec, or from penstock.codecs.CellCodec, "
        "were expected. Give them: codecs=[TheCodec]."
    )
    raise ArgumentError(msg)


@lru_cache(maxsize=256)
def _adapted(kind: type[DataframeColumnCodec]) -> type[Codec]:
    """Return a codec of the engine that decodes with a class of a user, known by the name that datasets store."""

    @dataclass(frozen=True)
    class Adapted(CellCodec):
        name: ClassVar[str] = f"{kind.__module__}.{kind.__qualname__}"
        theirs: Any
        stored: str = ""

        @classmethod
        def of(cls, options: Mapping[str, Any]) -> Codec:
            made = kind.__new__(kind)
            for option, value in options.items():
                setattr(made, f"_{option}", value)
            return cls(made, repr(dict(options)))

        def options(self) -> Mapping[str, Any]:
            return {name.removeprefix("_"): value for name, value in vars(self.theirs).items()}

        def encode(self, field: Field, cell: Any) -> bytes:
            return bytes(self.theirs.encode(_field(field, self.theirs), cell))

        def decode(self, field: Field, cell: memoryview) -> Any:
            return self.theirs.decode(_field(field, self.theirs), bytes(cell))

    return Adapted


def _field(field: Field, codec: Any) -> UnischemaField:
    return UnischemaField(field.name, field.dtype.type, field.shape, codec, field.nullable)
