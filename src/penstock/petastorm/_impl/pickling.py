"""Pickles of functions and objects of users for other processes, with the code of modules that those cannot import."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

from penstock._engine.processes.pickling import _is_found

__all__ = ["dumps", "loads"]

MAX_OBJECTS = 10_000
"""Objects that are searched for the modules that they come from."""


def dumps(value: Any) -> bytes:
    """Return the pickle of an object."""
    with _by_value(value):
        data: bytes = cloudpickle.dumps(value)
        return data


def loads(data: bytes) -> Any:
    """Return the object of a pickle that another process of this program has sent."""
    return cloudpickle.loads(data)


@contextmanager
def _by_value(value: Any) -> Iterator[None]:
    """Pickle the code of modules that a new process cannot import."""
    names = _module_names(value) & sys.modules.keys() - {"__main__"} - set(cloudpickle.list_registry_pickle_by_value())
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
            if isinstance(name, str) and name.partition(".")[0] not in _EXCLUDED:
                names.add(name)
        waiting += _parts(one)
    return names


_EXCLUDED = frozenset({"penstock", "numpy", "pyarrow", "pandas", *sys.stdlib_module_names})


def _parts(one: Any) -> list[Any]:  # noqa: PLR0911 - one for each kind
    """Return the parts of an object that may be functions or contain them."""
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
    return list(vars(one).values()) if hasattr(one, "__dict__") else []
