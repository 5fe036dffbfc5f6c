"""How cells are stored: one file per family of codecs, found by the name that stands on disk."""

from __future__ import annotations

import importlib
import json
import pkgutil
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

__all__ = [
    "Avif",
    "CellCodec",
    "Codec",
    "Jpeg",
    "Npy",
    "Npz",
    "Png",
    "Raw",
    "Scalar",
    "Tensor",
    "Webp",
    "default",
    "register",
]

_REGISTERED: dict[str, type[Codec]] = {}

Registered = TypeVar("Registered", bound=type[Codec])


def register(codec: Registered) -> Registered:
    """Make a codec of your own known by its name, and return it, so that it can be used as a decorator.

    Raises:
        ArgumentError: If it is no codec, or another has the name.

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
        msg = f"register got {codec!r}. A class derived from penstock.codecs.CellCodec with a `name` was expected. Give one."
        raise ArgumentError(msg)
    before = {**built_in(), **_REGISTERED}.get(codec.name)
    if before is not None and (before.__module__, before.__qualname__) != (codec.__module__, codec.__qualname__):
        msg = f"register got a codec called {codec.name!r}, and {before!r} has that name. Names must differ. Choose another."
        raise ArgumentError(msg)
    _REGISTERED[codec.name] = codec
    return codec


def built_in() -> dict[str, type[Codec]]:
    """Return the codecs of this package by name: those that each of its files lists in `CODECS`."""
    files = [info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")]
    modules = [importlib.import_module(f"{__name__}.{file}") for file in sorted(files)]
    return {codec.name: codec for module in modules for codec in module.CODECS}


def named(name: str, options: Mapping[str, Any], codecs: Iterable[type[Codec]] = ()) -> Codec:
    """Return the codec that a table was written with: one of `codecs`, one registered, or one of ours.

    What nobody knows is an `Unknown`, so that the table's other columns can be read.

    Raises:
        DataError: If the codec does not have such options.
    """
    found = {**built_in(), **_REGISTERED, **{codec.name: codec for codec in codecs}}.get(name)
    if found is None:
        return Unknown(called=name, stored=json.dumps(dict(options)))
    try:
        return found.of(options)
    except ValueError as error:
        msg = f"codec {name!r} was stored with options {dict(options)!r}, which it does not take: {str(error).rstrip('.')}"
        raise DataError(msg) from error
    except TypeError as error:
        own = ", ".join(getattr(found, "__dataclass_fields__", ())) or "none"
        msg = f"codec {name!r} was stored with options {dict(options)!r}, which it does not take; its own are: {own}"
        raise DataError(msg) from error


def classes(codecs: object, asked: str) -> list[type[Codec]]:
    """Return classes of codecs that were given to a function of some name.

    Raises:
        ArgumentError: If there is anything else among them.

    Example:
        >>> classes([Npy], "open")
        [<class 'penstock.codecs.npy.Npy'>]
    """
    given = list(codecs) if isinstance(codecs, Iterable) else []
    strangers = [codec for codec in given if not (isinstance(codec, type) and issubclass(codec, Codec))]
    if strangers or not isinstance(codecs, Iterable):
        told = f"{strangers[0]!r} among codecs" if strangers else f"codecs={codecs!r}"
        raise ArgumentError(f"{asked} got {told}. Classes of codecs were expected. Give them: codecs=[TheCodec].")
    return given


def resolved(field: Field, codecs: Iterable[type[Codec]]) -> Field:
    """Return a field with the codec it was written with, where that was not known and one of `codecs` is the one."""
    if not isinstance(field.codec, Unknown):
        return field
    return field.with_codec(named(field.codec.called, json.loads(field.codec.stored), codecs))


def default(field: Field) -> Codec:
    """Return what stores a field that names no codec: an Arrow scalar or tensor where Arrow has such, else `.npy`.

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
    msg = f"Field {field.name!r} is {field.dtype} {field.shape}, which no codec of ours stores. Give one of your own: codec=."
    raise ArgumentError(msg)


@dataclass(frozen=True)
class Unknown(CellCodec):
    """A codec that a table was written with and that nobody has told us of."""

    name = "unknown"
    called: str
    stored: str = "{}"

    def encode(self, field: Field, cell: Any) -> bytes:
        """Refuse."""
        self._refuse(field, cell)

    def decode(self, field: Field, cell: memoryview) -> Any:
        """Refuse."""
        self._refuse(field, cell)

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Refuse."""
        self._refuse(field, cells, out)

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Refuse."""
        self._refuse(field, cells)

    def storage(self, field: Field) -> pa.DataType:
        """Refuse."""
        self._refuse(field)

    def _refuse(self, field: Field, *_: object) -> NoReturn:
        msg = (
            f"Column {field.name!r} was written with codec {self.called!r}, which is not known here. Known: "
            f"{', '.join(sorted({**built_in(), **_REGISTERED}))}. Make it known with penstock.codecs.register(TheCodec), or "
            "open the table with codecs=[TheCodec]; or leave the column out with .select(...)."
        )
        raise DataError(msg)
