"""What the front door shows: a sorted list, nothing more and nothing less, each name explained by an example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType, NoneType
from typing import get_type_hints

import pytest

import penstock
from penstock.loading import Batches, Loader
from penstock.testing import example
from penstock.write import Writer

# Names that a module holds without meaning to show them.
UNMEANT = {"TYPE_CHECKING", "annotations"}


def held(module: ModuleType, name: str) -> object:
    """Return what a module holds under a name; nothing for an adapter whose framework is not installed."""
    try:
        return getattr(module, name)
    except ImportError:
        return None


def shown(module: ModuleType) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the classes and functions of a module's `__all__`, those of the modules in it included."""
    for name in getattr(module, "__all__", ()):
        value = held(module, name)
        if isinstance(value, ModuleType):
            yield from ((f"{name}.{inner}", found) for inner, found in shown(value))
        elif isinstance(value, type | FunctionType):
            yield name, value


SHOWN = dict(shown(penstock))


def test_all_is_sorted_and_names_nothing_twice() -> None:
    """A list in order has one place for each name."""
    assert list(penstock.__all__) == sorted(set(penstock.__all__))


def test_all_names_what_the_front_door_holds() -> None:
    """Whoever imports a name into the front door shows it; whatever is shown is there."""
    present = {name for name, value in vars(penstock).items() if not isinstance(value, ModuleType)} - UNMEANT
    modules = {name for name in penstock.__all__ if isinstance(held(penstock, name), ModuleType | NoneType)}

    assert {name for name in present if not name.startswith("_")} == {
        name for name in penstock.__all__ if not name.startswith("_") and name not in modules
    }


@pytest.mark.parametrize("name", SHOWN)
def test_every_public_name_has_an_example(name: str) -> None:
    """A docstring says what you get, and shows it."""
    text = SHOWN[name].__doc__ or ""

    assert "Example:\n" in text, f"penstock.{name} has no `Example:` in its docstring."
    assert ">>> " in text, f"The example of penstock.{name} is not one that runs."


@pytest.mark.parametrize("name", [name for name in SHOWN if "." not in name])
def test_every_public_name_says_that_it_is_of_penstock(name: str) -> None:
    """A repr or a traceback shows the name that users import, not the room behind it."""
    assert f"{SHOWN[name].__module__}.{name}" == f"penstock.{name}"


def test_what_is_handed_out_has_a_type_that_can_be_named() -> None:
    """Signatures tell it, so that a type checker knows what an iteration or a loader can do besides."""
    batches = iter(example().batch(4))  # as a `Batches`, for the next lines are checked too
    batches.close()

    assert batches.skipped == ()
    assert get_type_hints(penstock.Dataset.__iter__)["return"] is get_type_hints(penstock.Mixture.__iter__)["return"] is Batches
    assert get_type_hints(penstock.loader)["return"] is Loader
    assert isinstance(penstock.loader(example()), Loader)
    assert get_type_hints(penstock.write)["return"] is Writer
