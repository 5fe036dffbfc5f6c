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
    """Return a loader for plain Python: batches of arrays, epoch after epoch, with a state to save and load.

    Each `iter()` is the next epoch. `state_dict()` returns the position; after `load_state_dict(state)` the next `iter()`
    resumes there, also with another number of ranks.

    Args:
        ds: The dataset; clauses such as `batch` belong to it.
        options: None; the error for an option of another loader says what to write instead.

    Raises:
        UnknownArgumentError: If an option is given; all options belong to the dataset.
        ArgumentError: If `ds` is not a dataset or mixture.

    Example:
        >>> from penstock.testing import example
        >>> ds = example().shuffle(seed=1).batch(2)
        >>> first = loader(ds)
        >>> batches = iter(first)
        >>> _ = next(batches)
        >>> resumed = loader(ds)
        >>> resumed.load_state_dict(first.state_dict())
        >>> all((a["id"] == b["id"]).all() for a, b in zip(batches, resumed, strict=True))
        True
    """
    refuse_options("penstock.loader", options, "none")
    if not isinstance(ds, Dataset | Mixture):
        msg = (
            f"loader() got {type(ds).__name__}; expected a dataset, for example penstock.loader(penstock.open(url).batch(32))."
        )
        raise ArgumentError(msg)
    return Loader(ds._table, ds._query)  # noqa: SLF001 - the parts of a dataset
