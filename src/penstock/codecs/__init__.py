"""Codecs: how cells are stored. Each module is a family of codecs; the stored name of a codec finds its class."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy.typing as npt
import pyarrow as pa

from penstock._blobs import Blobs
from penstock.codecs.image import Avif, Jpeg, Png, Webp
from penstock.codecs.npy import Npy
from penstock.codecs.npz import Npz
from penstock.codecs.raw import Raw
from penstock.codecs.scalar import Scalar
from penstock.codecs.tensor import Tensor
from penstock.errors import ArgumentError, DataError
from penstock.schema import CellCodec, Codec, Field

__all__ = ["Avif", "CellCodec", "Codec", "Jpeg", "Npy", "Npz", "Png", "Raw", "Scalar", "Tensor", "Webp", "default", "register"]

_REGISTERED: dict[str, type[Codec]] = {}

Registered = TypeVar("Registered", bound=type[Codec])


def register(codec: Registered) -> Registered:
    """Register a codec class under its name, and return it, so that this can be used as a decorator.

    Raises:
        ArgumentError: If it is not a codec class, or another codec has the name.

    Example:
        >>> import numpy as np
        >>> @register
        ... @dataclass(frozen=True)
        ... class Reversed(CellCodec):
        ...     name = "reversed-example"
        ...
        ...     def encode(self, field, cell):
        ...         return cell[::-1].tobytes()
        ...
        ...     def decode(self, field, cell):
        ...         return np.frombuffer(cell, field.dtype)[::-1]
        >>> named("reversed-example", {})
        Reversed()
    """
    given: object = codec
    if not (isinstance(given, type) and issubclass(given, Codec) and isinstance(getattr(given, "name", None), str)):
        msg = f"register() got {codec!r}; expected a subclass of penstock.codecs.CellCodec with a `name`."
        raise ArgumentError(msg)
    other = {**built_in(), **_REGISTERED}.get(codec.name)
    if other is not None and (other.__module__, other.__qualname__) != (codec.__module__, codec.__qualname__):
        msg = f"register() got a codec with the name {codec.name!r}, which {other!r} has already. Choose another name."
        raise ArgumentError(msg)
    _REGISTERED[codec.name] = codec
    return codec


def built_in() -> dict[str, type[Codec]]:
    """Return the codecs of this package by name: those in `CODECS` of each of its modules."""
    import pkgutil

    files = [info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")]
    modules = [importlib.import_module(f"{__name__}.{file}") for file in sorted(files)]
    return {codec.name: codec for module in modules for codec in module.CODECS}


def named(name: str, options: Mapping[str, Any], codecs: Iterable[type[Codec]] = ()) -> Codec:
    """Return the codec that a table was written with: one of `codecs`, a registered one, or a built-in one.

    An unknown codec is an `Unknown`, so that the other columns of the table can be read.

    Raises:
        DataError: If the codec does not have these options.
    """
    codec = {**built_in(), **_REGISTERED, **{codec.name: codec for codec in codecs}}.get(name)
    if codec is None:
        return Unknown(called=name, stored=json.dumps(dict(options)))
    try:
        return codec.of(options)
    except ValueError as error:
        msg = f"codec {name!r} was stored with invalid options {dict(options)!r}: {str(error).rstrip('.')}"
        raise DataError(msg) from error
    except TypeError as error:
        own = ", ".join(getattr(codec, "__dataclass_fields__", ())) or "none"
        msg = f"codec {name!r} was stored with invalid options {dict(options)!r}; its options are: {own}"
        raise DataError(msg) from error


def classes(codecs: object, call: str) -> list[type[Codec]]:
    """Return the codec classes that were passed to a call.

    Raises:
        ArgumentError: If one of them is not a codec class.

    Example:
        >>> classes([Npy], "open")
        [<class 'penstock.codecs.npy.Npy'>]
    """
    given = list(codecs) if isinstance(codecs, Iterable) else []
    invalid = [codec for codec in given if not (isinstance(codec, type) and issubclass(codec, Codec))]
    if invalid or not isinstance(codecs, Iterable):
        value = invalid[0] if invalid else codecs
        raise ArgumentError(f"{call}() got codecs={value!r}; expected codec classes, for example codecs=[MyCodec].")
    return given


def resolved(field: Field, codecs: Iterable[type[Codec]]) -> Field:
    """Return a field whose unknown codec is resolved, if it is one of `codecs`."""
    if not isinstance(field.codec, Unknown):
        return field
    return field.with_codec(named(field.codec.called, json.loads(field.codec.stored), codecs))


def default(field: Field) -> Codec:
    """Return the default codec of a field: an Arrow scalar or tensor if Arrow has its type, else `.npy`.

    Example:
        >>> import numpy as np
        >>> default(Field("x", np.float32, (3,))), default(Field("x", np.float32, (None, 3)))
        (Tensor(), Npy())
    """
    for codec in (Scalar(), Tensor(), Npy()):
        try:
            codec.check(field)
        except ArgumentError:
            continue
        return codec
    msg = f"Field {field.name!r} has dtype {field.dtype} and shape {field.shape}, which no built-in codec stores. Use a codec "
    raise ArgumentError(msg + "of your own: codec=MyCodec().")


@dataclass(frozen=True)
class Unknown(CellCodec):
    """A stored codec whose class is not known."""

    name = "unknown"
    called: str
    stored: str = "{}"

    def encode(self, field: Field, cell: Any) -> bytes:
        """Raise an error."""
        self._raise(field, cell)

    def decode(self, field: Field, cell: memoryview) -> Any:
        """Raise an error."""
        self._raise(field, cell)

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Raise an error."""
        self._raise(field, cells, out)

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Raise an error."""
        self._raise(field, cells)

    def storage(self, field: Field) -> pa.DataType:
        """Raise an error."""
        self._raise(field)

    def _raise(self, field: Field, *_: object) -> NoReturn:
        msg = (
            f"Column {field.name!r} was written with the unknown codec {self.called!r}. Known codecs: "
            f"{', '.join(sorted({**built_in(), **_REGISTERED}))}. Register its class with penstock.codecs.register(MyCodec), "
            "or open the table with codecs=[MyCodec]; or leave the column out with .select(...)."
        )
        raise DataError(msg)
