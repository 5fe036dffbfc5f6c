"""`petastorm.transform`: functions of users, and the schema of their results."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.petastorm.unischema import Unischema, UnischemaField

__all__ = ["TransformSpec", "edit_field", "transform_schema"]


def edit_field(name: str, numpy_dtype: Any, shape: tuple[int | None, ...], nullable: bool = False) -> tuple[Any, ...]:
    """Return a field that a function adds or changes, for `TransformSpec`."""
    return (name, numpy_dtype, shape, nullable)


class TransformSpec:
    """A function for each row, or for the data frame of each row group, and its effect on the fields.

    Args:
        func: The function. It takes and returns a dict in `make_reader`, and a data frame in `make_batch_reader`.
        edit_fields: Fields that it adds or changes: fields, or tuples of name, NumPy type, shape and nullability.
        removed_fields: Names of fields that are removed after it.
        selected_fields: Names of the fields that remain, in their order.

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
        """Store the arguments."""
        if removed_fields and selected_fields:
            msg = "User can only specify one of removed_fields and selected_fields in TransformSpec. Leave one of them out."
            raise ValueError(msg)
        self.func = func
        self.edit_fields = list(edit_fields or ())
        self.removed_fields = list(removed_fields or ())
        self.selected_fields = None if selected_fields is None else list(selected_fields)


def transform_schema(schema: Unischema, transform_spec: TransformSpec) -> Unischema:
    """Return the schema of results: remaining fields, then edited ones; or the selected fields in their order."""
    removed = set(transform_spec.removed_fields)
    unknown = sorted(removed - set(schema.fields))
    if unknown:
        _warn("remove_fields", unknown)
    new_fields = [UnischemaField(edit[0], edit[1], edit[2], None, _nullable(edit)) for edit in transform_spec.edit_fields]
    edited = {field.name for field in new_fields}
    fields = [field for name, field in schema.fields.items() if name not in removed | edited]
    fields += new_fields
    if transform_spec.selected_fields is not None:
        by_name = {field.name: field for field in fields}
        unknown = sorted(set(transform_spec.selected_fields) - set(by_name))
        if unknown:
            _warn("selected_fields", unknown)
        fields = [by_name[name] for name in transform_spec.selected_fields if name in by_name]
    return Unischema(f"{schema._name}_transformed", fields)  # noqa: SLF001 - a Unischema has no other name


def _nullable(edit: Any) -> bool:
    """Return whether an edited field is nullable; a tuple has no codec before that."""
    return bool(edit.nullable if isinstance(edit, UnischemaField) else edit[3])


def _warn(what: str, names: Sequence[str]) -> None:
    warnings.warn(
        f"{what} specified some field names that are not part of the schema. These field names will be ignored "
        f'"{", ".join(names)}".',
        UserWarning,
        stacklevel=3,
    )
