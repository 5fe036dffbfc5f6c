"""`petastorm.ngram`: windows of rows that follow one another in time, with different fields at each offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from numbers import Number
from typing import Any

import numpy as np

from penstock._engine.plan.sequence_find import SequenceRule, SortedRows, first_unordered, sequence_starts
from penstock.model import IntArray
from penstock.petastorm.unischema import Unischema, UnischemaField, match_unischema_fields, row_type

__all__ = ["NGram"]

EXACT = 1 << 52
"""Integers below this are exact as floats."""


class NGram:
    """A definition of windows: consecutive rows whose timestamps differ by at most a threshold from row to row.

    Args:
        fields: The fields at each offset: fields, or regular expressions.
        delta_threshold: The maximum difference between the timestamps of consecutive rows.
        timestamp_field: The timestamp field, or a regular expression that matches it alone.
        timestamp_overlap: Whether windows may overlap. If not, each begins after the end of the one before it.

    Raises:
        ValueError: If an argument is invalid.
    """

    def __init__(
        self, fields: dict[int, list[Any]], delta_threshold: Any, timestamp_field: Any, timestamp_overlap: bool = True
    ) -> None:
        """Store the fields and the threshold."""
        self._fields, self._delta_threshold, self._timestamp_field = fields, delta_threshold, timestamp_field
        self.timestamp_overlap = timestamp_overlap
        self._validate()

    def _validate(self) -> None:
        if not self._fields or not isinstance(self._fields, dict):
            raise ValueError("Fields must be set and must be a dictionary.")
        for fields in self._fields.values():
            if not isinstance(fields, list):
                raise ValueError("Each field value must be a list of unischema fields/regular expression(s)")  # noqa: TRY004
            if not all(isinstance(field, (UnischemaField, str)) for field in fields):
                raise ValueError("All field values must be of type UnischemaField/regular expression")
        if not isinstance(self._delta_threshold, Number):
            raise ValueError("delta_threshold must be a number.")  # noqa: TRY004 - the type that Petastorm raises
        if not self._timestamp_field or not isinstance(self._timestamp_field, (UnischemaField, str)):
            raise ValueError("timestamp_field must be set and must be of type UnischemaField or regular expression")
        if not isinstance(self.timestamp_overlap, bool):
            raise ValueError("timestamp_overlap must be set and must be of type bool")  # noqa: TRY004 - the same

    @property
    def length(self) -> int:
        """The number of rows of a window, from the first offset to the last."""
        return max(self._fields) - min(self._fields) + 1

    @property
    def fields(self) -> dict[int, list[Any]]:
        """The fields at each offset."""
        return self._fields

    @property
    def delta_threshold(self) -> Any:
        """The maximum difference between the timestamps of consecutive rows."""
        return self._delta_threshold

    def resolve_regex_field_names(self, schema: Unischema) -> None:
        """Replace regular expressions by the fields of a schema that they match.

        Raises:
            ValueError: If that of the timestamp matches several fields.
        """
        self._fields = {offset: self.convert_fields(schema, fields) for offset, fields in self._fields.items()}
        matched = self.convert_fields(schema, [self._timestamp_field])
        if len(matched) > 1:
            raise ValueError("timestamp_field was matched to more than one unischema field")
        self._timestamp_field = matched[0]

    def convert_fields(self, unischema: Unischema, field_list: Sequence[Any]) -> list[Any]:
        """Return the fields of a list and those that its regular expressions match, without duplicates.

        Raises:
            ValueError: If an item has a wrong type.
        """
        fields = [field for field in field_list if isinstance(field, UnischemaField)]
        patterns = [field for field in field_list if isinstance(field, str)]
        if len(fields) + len(patterns) < len(field_list):
            msg = '"Elements of fields"/"timestamp field" must be either a string (regular expressions) or an instance of '
            raise ValueError(msg + "UnischemaField class.")
        return list({field.name: field for field in [*fields, *match_unischema_fields(unischema, patterns)]}.values())

    def get_field_names_at_timestep(self, timestep: int) -> list[str]:
        """Return the names of the fields at an offset."""
        return [field if isinstance(field, str) else field.name for field in self._fields.get(timestep, ())]

    def get_field_names_at_all_timesteps(self) -> list[Any]:
        """Return the fields at all offsets, and the timestamp field."""
        every = [field for fields in self._fields.values() for field in fields]
        every += [] if isinstance(self._timestamp_field, str) else [self._timestamp_field]
        return list({field if isinstance(field, str) else field.name: field for field in every}.values())

    def get_schema_at_timestep(self, schema: Unischema, timestep: int) -> Unischema:
        """Return the fields at an offset, in the order of a schema."""
        names = set(self.get_field_names_at_timestep(timestep))
        return schema.create_schema_view([field for name, field in schema.fields.items() if name in names])

    def form_ngram(self, data: Sequence[Mapping[str, Any]], schema: Unischema) -> list[dict[int, dict[str, Any]]]:
        """Return the windows of rows that are dicts; a window has a dict of fields at each offset.

        Raises:
            NotImplementedError: If the rows are not sorted by timestamp.
        """
        starts_of_windows = self._starts([row[self._timestamp_field.name] for row in data])
        fields = {offset: [name for name in schema.fields if name in set(names)] for offset, names in self._every()}
        first = min(self._fields)
        return [
            {offset: {name: data[start + offset - first][name] for name in names} for offset, names in fields.items()}
            for start in starts_of_windows
        ]

    def make_namedtuple(self, schema: Unischema, ngram_as_dicts: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        """Return a window whose rows are named tuples."""
        return {
            offset: self.get_schema_at_timestep(schema, offset).make_namedtuple(**row) for offset, row in ngram_as_dicts.items()
        }

    def _every(self) -> list[tuple[int, list[str]]]:
        """Return all offsets from the first to the last, with the names of their fields."""
        return [(at, self.get_field_names_at_timestep(at)) for at in range(min(self._fields), max(self._fields) + 1)]

    def _starts(self, times: Sequence[Any]) -> list[int]:
        """Return the first rows of windows."""
        line = _as_numbers(times, self._delta_threshold)
        if line is None:
            return self._starts_of_any_type(times)
        counted, gap = line
        if len(times) >= self.length and first_unordered(counted, None, self.length) is not None:
            raise NotImplementedError(self._unsorted())
        rule = SequenceRule(length=self.length, gap=gap, overlap=self.timestamp_overlap)
        rows: IntArray = sequence_starts(SortedRows.of(counted), rule)
        return [int(row) for row in rows]

    def _starts_of_any_type(self, times: Sequence[Any]) -> list[int]:
        """Return the first rows of windows, for timestamps of any type that can be compared and subtracted."""
        rows: list[int] = []
        end = None
        for start in range(len(times) - self.length + 1):
            window = times[start : start + self.length]
            if not all(earlier <= later for earlier, later in pairwise(window)):
                raise NotImplementedError(self._unsorted())
            close = all(later - earlier <= self._delta_threshold for earlier, later in pairwise(window))
            if not close or (not self.timestamp_overlap and end is not None and window[0] <= end):
                continue
            rows.append(start)
            end = window[-1]
        return rows

    def _unsorted(self) -> str:
        name = self._timestamp_field if isinstance(self._timestamp_field, str) else self._timestamp_field.name
        return f"NGram assumes that the data is sorted by {name} field which is not the case"

    def __eq__(self, other: object) -> bool:
        """Return whether the other one has the same fields at the same offsets."""
        if not isinstance(other, NGram):
            return NotImplemented
        mine, theirs = ({at: set(map(str, names)) for at, names in one._every()} for one in (self, other))  # noqa: SLF001
        return self._fields.keys() == other._fields.keys() and mine == theirs

    def __ne__(self, other: object) -> bool:
        """Return whether the fields differ."""
        return not self == other

    def __hash__(self) -> int:
        """Return a hash of the offsets."""
        return hash(frozenset(self._fields))


def _as_numbers(times: Sequence[Any], threshold: Any) -> tuple[Any, int | float | None] | None:
    """Return timestamps and a threshold as the engine compares them; None if that is not exact."""
    array = np.asarray(times) if len(times) else np.zeros(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or isinstance(threshold, complex):
        return None
    gap = float(threshold)
    if not 0 <= gap < EXACT:
        return None
    if array.dtype.kind == "f":
        return None if np.isnan(array).any() else (array.astype(np.float64), gap)
    if array.dtype.kind == "u" or not len(array):
        return array.astype(np.uint64), int(gap)
    wide = array.astype(np.int64)
    return wide.view(np.uint64) - wide.min(keepdims=True).view(np.uint64), int(gap)


class Windows:
    """Makes windows of the rows of a row group, with named tuples as rows."""

    def __init__(self, ngram: NGram, schema: Unischema) -> None:
        """Store the fields at each offset, and the types of their rows."""
        self._ngram, self._time = ngram, ngram._timestamp_field.name  # noqa: SLF001 - of this module
        views = {offset: ngram.get_schema_at_timestep(schema, offset) for offset, _ in ngram._every()}  # noqa: SLF001 - the same
        self._row_types = {offset: (view._name, tuple(view.fields)) for offset, view in views.items()}  # noqa: SLF001 - a Unischema has no other name

    def make(self, columns: Mapping[str, list[Any]], count: int) -> list[dict[int, Any]]:
        """Return windows, which are dicts of rows by offset."""
        starts_of_windows = self._ngram._starts(columns[self._time])  # noqa: SLF001 - of this module
        first, rows = min(self._row_types), {}
        for offset, (name, fields) in self._row_types.items():
            tuple_type = row_type(name, fields)
            cells = zip(*(columns[field] for field in fields), strict=True)
            rows[offset] = list(map(partial(tuple.__new__, tuple_type), cells)) if fields else [tuple_type()] * count
        return [{offset: every[start + offset - first] for offset, every in rows.items()} for start in starts_of_windows]
