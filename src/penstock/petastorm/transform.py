"""User functions of `petastorm.transform`, and the schema of what they return."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.petastorm.unischema import Unischema, UnischemaField

__all__ = ["TransformSpec", "edit_field", "transform_schema"]


def edit_field(name: str, numpy_dtype: Any, shape: tuple[int | None, ...], nullable: bool = False) -> tuple[Any, ...]:
    """Return a field that a function adds or changes, as `TransformSpec` takes it."""
    return (name, numpy_dtype, shape, nullable)


class TransformSpec:
    """A function that is run on each row, or on the data frame of each row group, and what it does to the fields.

    Args:
        func: The function. Of rows it takes and returns a dict, of row groups a data frame, which may have other rows.
        edit_fields: Fields that it adds or changes: fields, or tuples of name, NumPy type, shape and whether it may be None.
        removed_fields: Names of fields that are left out afterwards.
        selected_fields: Names of the fields that are left, in their order.

    Raises:
        ValueError: If both `removed_fields` and `selected_fields` are given.
    """

    def __init__(
        self,
        func: Callable[..., Any] | None = None,
        edit_fields: Iterable[Any] | None = None,
        removed_fields: Iterable[str] | None = None,
        selected_fields: Sequence[str] | None = None,
    ) -> None:
        """Store the function and what it does."""
        if removed_fields and selected_fields:
            msg = "User can only specify one of removed_fields and selected_fields in TransformSpec. Leave one of them out."
            raise ValueError(msg)
        self.func = func
        self.edit_fields = list(edit_fields or ())
        self.removed_fields = list(removed_fields or ())
        self.selected_fields = None if selected_fields is None else list(selected_fields)


def transform_schema(schema: Unischema, transform_spec: TransformSpec) -> Unischema:
    """Return the schema of what a function returns: fields left, then those edited, or those selected in their order."""
    gone = set(transform_spec.removed_fields)
    unknown = sorted(gone - set(schema.fields))
    if unknown:
        _warn("remove_fields", unknown)
    made = [UnischemaField(edit[0], edit[1], edit[2], None, _nullable(edit)) for edit in transform_spec.edit_fields]
    edited = {field.name for field in made}
    fields = [field for name, field in schema.fields.items() if name not in gone | edited]
    fields += made
    if transform_spec.selected_fields is not None:
        by_name = {field.name: field for field in fields}
        unknown = sorted(set(transform_spec.selected_fields) - set(by_name))
        if unknown:
            _warn("selected_fields", unknown)
        fields = [by_name[name] for name in transform_spec.selected_fields if name in by_name]
    return Unischema(f"{schema._name}_transformed", fields)  # noqa: SLF001 - the name, which has no other way


def _nullable(edit: Any) -> bool:
    """Return whether an edited field may be None; where it is a whole field that is told after its codec."""
    return bool(edit.nullable if isinstance(edit, UnischemaField) else edit[3])


def _warn(what: str, names: Sequence[str]) -> None:
    told = ", ".join(names)
    warnings.warn(
        f'{what} specified some field names that are not part of the schema. These field names will be ignored "{told}".',
        UserWarning,
        stacklevel=3,
    )
