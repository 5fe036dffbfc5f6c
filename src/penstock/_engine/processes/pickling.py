"""Functions and objects of users as bytes for another process, with their code where that process would not find it."""

from __future__ import annotations

import dataclasses
import functools
import importlib.machinery
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

MAX_OBJECTS = 10_000
"""How many objects are searched for the modules that they come from."""

_IMPORTABLE = frozenset({"penstock", "numpy", "pyarrow", "pandas", *sys.stdlib_module_names})

_registering = threading.RLock()
"""cloudpickle has one registry of modules for all threads. An object that is pickled may itself call `dumps_by_value`."""


def dumps_by_value(value: Any) -> bytes:
    """Return the pickle of an object; `cloudpickle.loads` makes it again in another process of this program.

    Functions of modules that a fresh process would not find are pickled with their code, as those of a notebook are.
    """
    with _registering, _modules_by_value(value):
        data: bytes = cloudpickle.dumps(value)
        return data


@contextmanager
def _modules_by_value(value: Any) -> Iterator[None]:
    registered = cloudpickle.list_registry_pickle_by_value()
    names = {name for name in _module_names(value) if name in sys.modules and name not in registered}
    modules = [sys.modules[name] for name in sorted(names) if not _is_found(sys.modules[name])]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _module_names(value: Any) -> set[str]:
    """Return the names of the modules that an object and its parts come from."""
    names: set[str] = set()
    seen: dict[int, Any] = {}
    waiting = [value]
    while waiting and len(seen) < MAX_OBJECTS:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (str, bytes, int, float, types.ModuleType, type(None))):
            continue
        seen[id(one)] = one
        for each in (one, type(one)):
            name = getattr(each, "__module__", None)
            if isinstance(name, str) and name != "__main__" and name.partition(".")[0] not in _IMPORTABLE:
                names.add(name)
        waiting += _parts(one)
    return names


def _parts(one: Any) -> list[Any]:  # noqa: PLR0911 - one for each kind
    """Return the parts of an object that may contain functions."""
    if isinstance(one, types.FunctionType):
        cells = [cell.cell_contents for cell in one.__closure__ or () if cell.cell_contents is not cell]
        return [*cells, *(one.__defaults__ or ()), getattr(one, "__wrapped__", None)]
    if isinstance(one, types.MethodType):
        return [one.__func__, one.__self__]
    if isinstance(one, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, (list, tuple, set, frozenset)):
        return list(one)
    if isinstance(one, dict):
        return list(one.values())
    if isinstance(one, type):
        return []
    if dataclasses.is_dataclass(one):
        return [getattr(one, field.name, None) for field in dataclasses.fields(one)]
    return list(vars(one).values()) if hasattr(one, "__dict__") else []


def _is_found(module: types.ModuleType) -> bool:
    """Return whether a fresh process with this one's path would find a module."""
    file = getattr(module, "__file__", None)
    if file is None:
        return True
    parts, path, spec = module.__name__.split("."), None, None
    for at in range(len(parts)):
        spec = _find_spec(".".join(parts[: at + 1]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin == file


def _find_spec(name: str, path: Any) -> importlib.machinery.ModuleSpec | None:
    return next((spec for finder in sys.meta_path if (spec := finder.find_spec(name, path)) is not None), None)
