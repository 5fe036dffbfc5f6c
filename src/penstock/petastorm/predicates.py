"""Predicates of `petastorm.predicates`: which rows are read.

A reader of rows asks a predicate about each row, a dict of the fields that it looks at. A reader of batches asks it about
a whole row group at once, as a data frame, and expects as many answers.
"""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "PredicateBase",
    "in_intersection",
    "in_lambda",
    "in_negate",
    "in_pseudorandom_split",
    "in_reduce",
    "in_set",
]


class PredicateBase(ABC):
    """What predicates have in common; derive from it for one of your own."""

    @abstractmethod
    def get_fields(self) -> set[str]:
        """Return the names of the fields that it looks at."""

    @abstractmethod
    def do_include(self, values: Any) -> Any:
        """Return whether a row is read, given those fields of it."""


class in_set(PredicateBase):  # noqa: N801 - Petastorm's name
    """Rows whose field has one of some values."""

    def __init__(self, inclusion_values: Iterable[Any], predicate_field: str) -> None:
        """Store the values and the field."""
        self._predicate_field = predicate_field
        values = list(inclusion_values)
        try:
            self._inclusion_values: set[Any] | list[Any] = set(values)
        except TypeError:  # what has no hash is looked for one by one
            self._inclusion_values = values

    def get_fields(self) -> set[str]:
        """Return the field."""
        return {self._predicate_field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        """Return whether the field has one of the values."""
        return values[self._predicate_field] in self._inclusion_values


class in_intersection(PredicateBase):  # noqa: N801 - Petastorm's name
    """Rows whose field, a list, holds at least one of some values."""

    def __init__(self, inclusion_values: Iterable[Any], _predicate_field: str) -> None:
        """Store the values and the field."""
        self._inclusion_values, self._predicate_field = list(inclusion_values), _predicate_field

    def get_fields(self) -> set[str]:
        """Return the field."""
        return {self._predicate_field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        """Return whether the field holds one of the values.

        Raises:
            ValueError: If the field is no list.
        """
        found = values[self._predicate_field]
        if not isinstance(found, Iterable):
            msg = f"Predicate field should have iterable type. {self._predicate_field!r} is {type(found).__name__}: use in_set."
            raise ValueError(msg)  # noqa: TRY004 - the type that Petastorm raises
        if isinstance(found, (str, bytes)):  # a text is one value, and not its letters
            return found in self._inclusion_values
        held = found.tolist() if hasattr(found, "tolist") else list(found)
        return any(value in held for value in self._inclusion_values)


class in_lambda(PredicateBase):  # noqa: N801 - Petastorm's name
    """Rows that a function is true of.

    Args:
        predicate_fields: The fields that it takes, in their order.
        predicate_func: The function.
        state_arg: What it takes last, where that is not None.

    Raises:
        ValueError: If the fields are no list.
    """

    def __init__(self, predicate_fields: list[str], predicate_func: Callable[..., Any], state_arg: Any = None) -> None:
        """Store the function and the fields."""
        if not isinstance(predicate_fields, list):
            msg = f"Predicate fields should be a list, and are {predicate_fields!r}. Give one: in_lambda(['id'], function)."
            raise ValueError(msg)  # noqa: TRY004 - the type that Petastorm raises
        self._predicate_fields, self._predicate_func, self._state_arg = predicate_fields, predicate_func, state_arg

    def get_fields(self) -> set[str]:
        """Return the fields."""
        return set(self._predicate_fields)

    def do_include(self, values: Any) -> Any:
        """Return what the function returns."""
        given = [values[name] for name in self._predicate_fields]
        return self._predicate_func(*given) if self._state_arg is None else self._predicate_func(*given, self._state_arg)


class in_negate(PredicateBase):  # noqa: N801 - Petastorm's name
    """Rows that another predicate leaves out.

    Raises:
        ValueError: If it is none.
    """

    def __init__(self, predicate: PredicateBase) -> None:
        """Store the predicate."""
        self._predicate = _checked(predicate)

    def get_fields(self) -> set[str]:
        """Return the fields of the other."""
        return self._predicate.get_fields()

    def do_include(self, values: Any) -> bool:
        """Return whether the other leaves the row out."""
        return not self._predicate.do_include(values)


class in_reduce(PredicateBase):  # noqa: N801 - Petastorm's name
    """Rows of which a function of what several predicates say is true, like `all` or `any`.

    Raises:
        ValueError: If one of them is none.
    """

    def __init__(self, predicate_list: Sequence[PredicateBase], reduce_func: Callable[[list[Any]], Any]) -> None:
        """Store the predicates and the function."""
        self._predicate_list, self._reduce_func = [_checked(predicate) for predicate in predicate_list], reduce_func

    def get_fields(self) -> set[str]:
        """Return the fields of all of them."""
        return {name for predicate in self._predicate_list for name in predicate.get_fields()}

    def do_include(self, values: Any) -> Any:
        """Return what the function says."""
        return self._reduce_func([predicate.do_include(values) for predicate in self._predicate_list])


class in_pseudorandom_split(PredicateBase):  # noqa: N801 - Petastorm's name
    """Rows of one of several parts, which a hash of a field decides, the same one for ever.

    Args:
        fraction_list: The share of each part, which make up 1 at most.
        subset_index: Which part.
        predicate_field: The field.

    Raises:
        ValueError: If there is no such part.
    """

    def __init__(self, fraction_list: Sequence[float], subset_index: int, predicate_field: str) -> None:
        """Store the part and the field."""
        if not 0 <= subset_index < len(fraction_list):
            msg = f"subset_index is out of range: it is {subset_index!r}, and there are {len(fraction_list)} parts, from 0 on."
            raise ValueError(msg)
        self._predicate_field = predicate_field
        most = sys.maxsize - 1
        ends: list[float] = [0]
        for fraction in fraction_list:
            ends.append(ends[-1] + fraction)
        self._bucket_low, self._bucket_high = ends[subset_index] * most, ends[subset_index + 1] * most

    def get_fields(self) -> set[str]:
        """Return the field."""
        return {self._predicate_field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        """Return whether the row is in the part.

        Raises:
            ValueError: If the row has no such field.
        """
        if self._predicate_field not in values:
            raise ValueError(f"Tested values does not have split key: {self._predicate_field}. It decides the part.")
        bucket = _bucket(values[self._predicate_field])
        return self._bucket_low <= bucket < self._bucket_high


def _bucket(value: Any) -> int:
    """Return the hash of a value. How a value is written decides in which part of an experiment its row is."""
    return _string_to_bucket(str(value), sys.maxsize)


def _string_to_bucket(string: str, bucket_num: int) -> int:
    """Return in which of some buckets a text is."""
    return int(hashlib.md5(string.encode("utf-8"), usedforsecurity=False).hexdigest(), 16) % bucket_num


def _checked(predicate: object) -> PredicateBase:
    if not isinstance(predicate, PredicateBase):
        msg = f"Predicate is expected to be derived from PredicateBase, and is {predicate!r}. Give one."
        raise ValueError(msg)  # noqa: TRY004 - the type that Petastorm raises
    return predicate
