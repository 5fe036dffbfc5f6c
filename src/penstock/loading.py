"""A loader for plain Python."""

from __future__ import annotations

from typing import Never

from penstock._engine.deliver.loader import Batches, Loader
from penstock._loader_options import refuse_options
from penstock.dataset import Dataset
from penstock.errors import ArgumentError
from penstock.mix import Mixture

__all__ = ["Batches", "Loader", "loader"]


def loader(ds: Dataset | Mixture, **options: Never) -> Loader:
    """Return a loader for plain Python: batches of arrays, epoch after epoch, with a state to save and take back.

    Each `iter()` is the next epoch. `state_dict()` says how far it has come; after `load_state_dict(state)` the next
    `iter()` goes on there, on the same number of ranks or another.

    Args:
        ds: What to read; its clauses, `batch` among them, say in which form.
        options: None; options of other loaders are refused with what to write instead.

    Raises:
        UnknownArgumentError: If an option is given; all of them belong to the dataset.
        ArgumentError: If it is no dataset.

    Example:
        >>> from penstock.testing import example
        >>> ds = example().shuffle(seed=1).batch(2)
        >>> first = loader(ds)
        >>> batches = iter(first)
        >>> _ = next(batches)
        >>> again = loader(ds)
        >>> again.load_state_dict(first.state_dict())
        >>> all((a["id"] == b["id"]).all() for a, b in zip(batches, again, strict=True))
        True
    """
    refuse_options("penstock.loader", options, "none")
    if not isinstance(ds, Dataset | Mixture):
        msg = (
            f"loader got {type(ds).__name__}. A dataset was expected. Give one: penstock.loader(penstock.open(url).batch(32))."
        )
        raise ArgumentError(msg)
    return Loader(ds._table, ds._query)  # noqa: SLF001 - a dataset has no other parts
