"""`deltatorch.id_based_deltadataset`: samples of a Delta table. Ids are not used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.deltatorch._arguments import check_id
from penstock.deltatorch.deltadataset import DeltaIterableDataset, FieldSpec

__all__ = ["IDBasedDeltaDataset"]


class IDBasedDeltaDataset(DeltaIterableDataset):
    """Samples of a Delta table. Rows may have any ids, or none.

    Args:
        path: The table.
        id_field: A column of ids. It is checked to exist, and not used.
        fields: As in `DeltaIterableDataset`, like the arguments that follow.
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
