"""The dataset that DeltaTorch calls `IDBasedDeltaDataset`; ids are not needed here, whatever they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.deltatorch._asking import check_id
from penstock.deltatorch.deltadataset import DeltaIterableDataset, FieldSpec

__all__ = ["IDBasedDeltaDataset"]


class IDBasedDeltaDataset(DeltaIterableDataset):
    """Samples of a Delta table whose rows may have ids: from 0, from 1, with gaps, or none.

    Args:
        path: The table.
        id_field: A column of ids. It must exist if it is named, and is needed for nothing else.
        fields: As of `DeltaIterableDataset`, like all that follow.
    """

    def __init__(
        self,
        path: str,
        id_field: str | None = None,
        fields: Sequence[FieldSpec] | None = None,
        version: int | None = None,
        partition_filter: Sequence[Any] | None = None,
        use_fixed_rank: bool = False,
        rank: int | None = None,
        num_ranks: int | None = None,
        num_workers: int = 2,
        shuffle: bool = False,
        batch_size: int = 32,
        drop_last: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        """Pin the table, and count its rows."""
        self.id_field = id_field
        super().__init__(
            path,
            fields,
            partition_filter,
            version,
            use_fixed_rank,
            rank,
            num_ranks,
            num_workers,
            shuffle,
            batch_size,
            drop_last,
            storage_options,
            seed=seed,
        )

    def _check(self, table: Any) -> None:
        check_id(self.id_field, table)
