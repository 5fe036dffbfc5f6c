"""`petastorm.predicates`: functions that select rows.

A reader of rows calls a predicate with each row, a dict of its fields. A reader of batches calls it with the data frame of a
row group, and expects a boolean for each row.
"""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["PredicateBase", "in_intersection", "in_lambda", "in_negate", "in_pseudorandom_split", "in_reduce", "in_set"]


class PredicateBase(ABC):
    """The base class of predicates."""

    @abstractmethod
    def get_fields(self) -> set[str]:
        """Return the names of the fields that `do_include` needs."""

    @abstractmethod
    def do_include(self, values: Any) -> Any:
        """Return whether a row is read."""


class in_set(PredicateBase):  # noqa: N801 - Petastorm's name
    """Rows whose field has one of the values."""

    def __init__(self, inclusion_values: Iterable[Any], predicate_field: str) -> None:
        """Store the values and the field."""
        self._predicate_field = predicate_field
        values = list(inclusion_values)
        try:
            self._inclusion_values: set[Any] | list[Any] = set(values)
        except TypeError:  # a value has no hash
            self._inclusion_values = values

    def get_fields(self) -> set[str]:
        """Return the field."""
        return {self._predicate_field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        """Return whether the field has one of the values."""
        return values[self._predicate_field] in self._inclusion_values


class in_intersection(PredicateBase):  # noqa: N801 - Petastorm's name
    """Rows whose field, a list, contains one of the values."""

    def __init__(self, inclusion_values: Iterable[Any], _predicate_field: str) -> None:
        """Store the values and the field."""
        self._inclusion_values, self._predicate_field = list(inclusion_values), _predicate_field

    def get_fields(self) -> set[str]:
        """Return the field."""
        return {self._predicate_field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        """Return whether the field contains one of the values.

        Raises:
            ValueError: If the field is not a list.
        """
        value = values[self._predicate_field]
        if not isinstance(value, Iterable):
            msg = f"Predicate field should have iterable type. {self._predicate_field!r} is {type(value).__name__}: use in_set."
            raise ValueError(msg)  # noqa: TRY004 - the type that Petastorm raises
        if isinstance(value, (str, bytes)):  # text is a single value
            return value in self._inclusion_values
        items = value.tolist() if hasattr(value, "tolist") else list(value)
        return any(included in items for included in self._inclusion_values)


class in_lambda(PredicateBase):  # noqa: N801 - Petastorm's name
    """Rows for which a function returns true.

    Args:
        predicate_fields: The fields that are the arguments of the function.
        predicate_func: The function.
        state_arg: The last argument of the function, unless it is None.

    Raises:
        ValueError: If the fields are not a list.
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
        """Return the result of the function."""
        arguments = [values[name] for name in self._predicate_fields]
        return (
            self._predicate_func(*arguments) if self._state_arg is None else self._predicate_func(*arguments, self._state_arg)
        )


class in_negate(PredicateBase):  # noqa: N801 - Petastorm's name
    """Rows that another predicate does not include.

    Raises:
        ValueError: If it is not a predicate.
    """

    def __init__(self, predicate: PredicateBase) -> None:
        """Store the predicate."""
        self._predicate = _check_predicate(predicate)

    def get_fields(self) -> set[str]:
        """Return the fields of the other predicate."""
        return self._predicate.get_fields()

    def do_include(self, values: Any) -> bool:
        """Return whether the other predicate does not include the row."""
        return not self._predicate.do_include(values)


class in_reduce(PredicateBase):  # noqa: N801 - Petastorm's name
    """Rows for which a function of the results of several predicates returns true, like `all` or `any`.

    Raises:
        ValueError: If one of them is not a predicate.
    """

    def __init__(self, predicate_list: Sequence[PredicateBase], reduce_func: Callable[[list[Any]], Any]) -> None:
        """Store the predicates and the function."""
        self._predicate_list, self._reduce_func = [_check_predicate(predicate) for predicate in predicate_list], reduce_func

    def get_fields(self) -> set[str]:
        """Return the fields of all predicates."""
        return {name for predicate in self._predicate_list for name in predicate.get_fields()}

    def do_include(self, values: Any) -> Any:
        """Return the result of the function."""
        return self._reduce_func([predicate.do_include(values) for predicate in self._predicate_list])


class in_pseudorandom_split(PredicateBase):  # noqa: N801 - Petastorm's name
    """Rows of one of several parts, decided by a hash of a field. The hash never changes.

    Args:
        fraction_list: The fraction of each part; the sum is 1 at most.
        subset_index: The number of the part.
        predicate_field: The field.

    Raises:
        ValueError: If the part does not exist.
    """

    def __init__(self, fraction_list: Sequence[float], subset_index: int, predicate_field: str) -> None:
        """Store the part and the field."""
        if not 0 <= subset_index < len(fraction_list):
            msg = f"subset_index is out of range: it is {subset_index!r}, and there are {len(fraction_list)} parts, from 0 on."
            raise ValueError(msg)
        self._predicate_field = predicate_field
        max_bucket = sys.maxsize - 1
        ends: list[float] = [0]
        for fraction in fraction_list:
            ends.append(ends[-1] + fraction)
        self._bucket_low, self._bucket_high = ends[subset_index] * max_bucket, ends[subset_index + 1] * max_bucket

    def get_fields(self) -> set[str]:
        """Return the field."""
        return {self._predicate_field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        """Return whether the row is in the part.

        Raises:
            ValueError: If the row does not have the field.
        """
        if self._predicate_field not in values:
            raise ValueError(f"Tested values does not have split key: {self._predicate_field}. It decides the part.")
        bucket = _bucket(values[self._predicate_field])
        return self._bucket_low <= bucket < self._bucket_high


def _bucket(value: Any) -> int:
    """Return the hash of a value, which is that of its text. A change would move rows between the parts of an experiment."""
    return _string_to_bucket(str(value), sys.maxsize)


def _string_to_bucket(string: str, bucket_num: int) -> int:
    """Return the bucket of a text."""
    return int(hashlib.md5(string.encode("utf-8"), usedforsecurity=False).hexdigest(), 16) % bucket_num


def _check_predicate(predicate: object) -> PredicateBase:
    if not isinstance(predicate, PredicateBase):
        msg = f"Predicate is expected to be derived from PredicateBase, and is {predicate!r}. Give one."
        raise ValueError(msg)  # noqa: TRY004 - the type that Petastorm raises
    return predicate
