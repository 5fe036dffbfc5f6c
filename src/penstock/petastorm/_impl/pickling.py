"""Functions and objects of users, packed for another process: with their code, where that would not find it."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

from penstock._engine.processes.pickling import _is_found

__all__ = ["packed", "unpacked"]

MOST = 10_000
"""So many objects are looked at for the modules that they come from."""


def packed(value: Any) -> bytes:
    """Return an object as bytes that another process makes it from again."""
    with _by_value(value):
        found: bytes = cloudpickle.dumps(value)
        return found


def unpacked(data: bytes) -> Any:
    """Return an object that this program packed, in another of its processes."""
    return cloudpickle.loads(data)


@contextmanager
def _by_value(value: Any) -> Iterator[None]:
    """Have what comes from modules that a fresh process would not find travel with its code."""
    names = {name for name in _modules(value) if name in sys.modules and name != "__main__"}
    known = cloudpickle.list_registry_pickle_by_value()
    chosen = [sys.modules[name] for name in sorted(names) if name not in known and not _is_found(sys.modules[name])]
    for module in chosen:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in chosen:
            cloudpickle.unregister_pickle_by_value(module)


def _modules(value: Any) -> set[str]:
    """Return the names of the modules that an object and what it is made of come from."""
    found: set[str] = set()
    seen: dict[int, Any] = {}
    waiting = [value]
    while waiting and len(seen) < MOST:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (str, bytes, int, float, types.ModuleType, type(None))):
            continue
        seen[id(one)] = one
        for each in (one, type(one)):
            name = getattr(each, "__module__", None)
            if isinstance(name, str) and name.partition(".")[0] not in _OURS:
                found.add(name)
        waiting += _parts(one)
    return found


_OURS = frozenset({"penstock", "numpy", "pyarrow", "pandas", *sys.stdlib_module_names})


def _parts(one: Any) -> list[Any]:  # noqa: PLR0911 - one for each kind
    """Return what an object is made of, as far as functions may be in it."""
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
