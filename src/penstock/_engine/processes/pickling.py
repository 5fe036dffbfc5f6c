"""A recipe as it travels to other processes: functions of all kinds travel, wherever they were written."""

from __future__ import annotations

import functools
import importlib.machinery
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import cloudpickle

from penstock._engine.processes.task import Recipe
from penstock.errors import ArgumentError

__all__ = ["dumps_by_value"]

_pickling = threading.Lock()


def dumps_by_value(recipe: Recipe) -> bytes:
    """Return a recipe as it travels.

    Raises:
        ArgumentError: If a function refers to something that cannot travel.
    """
    with _pickling, _by_value(recipe):
        try:
            packed: bytes = cloudpickle.dumps(recipe)
        except Exception as error:
            told = next((f"map {step.name}" for step in recipe.query.maps if not _travels(step.function)), "the dataset")
            msg = (
                f"{told} cannot be sent to another process: {error}. Functions travel by cloudpickle, with what they refer to. "
                "Make what cannot travel inside the function, or leave workers='processes' out."
            )
            raise ArgumentError(msg) from error
    return packed


def _travels(function: Any) -> bool:
    try:
        cloudpickle.dumps(function)
    except Exception:  # noqa: BLE001 - pickling runs what the function refers to
        return False
    return True


@contextmanager
def _by_value(recipe: Recipe) -> Iterator[None]:
    """Have functions of modules that other processes would not find travel with their code, as those of a notebook do."""
    given = [step.function for step in recipe.query.maps] + [column.codec for column in recipe.deferred]
    names = {name for one in given for name in _modules(one)}
    chosen = [sys.modules[name] for name in names if name in sys.modules and not _is_found(sys.modules[name])]
    for module in chosen:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in chosen:
            cloudpickle.unregister_pickle_by_value(module)


def _modules(given: Any) -> Iterator[str]:
    """Yield the names of the modules that something was written in."""
    if isinstance(given, functools.partial):
        yield from _modules(given.func)
    for one in (given, type(given)):
        name = getattr(one, "__module__", None)
        if isinstance(name, str) and name != "__main__":
            yield name


def _is_found(module: ModuleType) -> bool:
    """Return whether a fresh process with this one's path would find a module."""
    where = getattr(module, "__file__", None)
    if where is None:
        return True
    parts, path, spec = module.__name__.split("."), None, None
    for at in range(len(parts)):
        spec = _spec(".".join(parts[: at + 1]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin == where


def _spec(name: str, path: Any) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        found = finder.find_spec(name, path)
        if found is not None:
            return found
    return None
