"""`deltatorch.skip_batch_deltadataset`: the same samples, with fewer arguments."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.deltatorch.deltadataset import DeltaIterableDataset, FieldSpec

__all__ = ["SkipReadDeltaDataset"]


class SkipReadDeltaDataset(DeltaIterableDataset):
    """Samples of the newest version of a Delta table; see `DeltaIterableDataset` for the arguments."""

    def __init__(
        self,
        path: str,
        fields: Sequence[FieldSpec] | None = None,
        use_fixed_rank: bool = False,
        rank: int | None = None,
        num_ranks: int | None = None,
        num_workers: int = 2,
        shuffle: bool = False,
    ) -> None:
        """Pin the table, and count its rows."""
        super().__init__(
            path,
            fields,
            use_fixed_rank=use_fixed_rank,
            rank=rank,
            num_ranks=num_ranks,
            num_workers=num_workers,
            shuffle=shuffle,
        )
