"""The dataset that DeltaTorch calls `DeltaIterableDataset`: samples of a Delta table, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils import data

from penstock.deltatorch._asking import Asked, Ranks, table_of
from penstock.deltatorch._samples import PACKED, FieldSpec, sample
from penstock.torch import IterableDataset

__all__ = ["DeltaIterableDataset", "FieldSpec"]


class _OneByOne(Iterator[dict[str, Any]]):
    """Samples out of batches of them. No generator: what went wrong once goes wrong again, and is no end."""

    def __init__(self, batches: Iterator[Mapping[str, Any]]) -> None:
        self._batches = batches
        self._left: Iterator[dict[str, Any]] = iter(())

    def __next__(self) -> dict[str, Any]:
        while True:
            for one in self._left:
                return one
            self._left = iter(next(self._batches)[PACKED])


class DeltaIterableDataset(data.IterableDataset[dict[str, Any]]):
    """Samples of a Delta table, pinned to one version, for a `DataLoader` of your own.

    With several ranks, each gets as many samples; where rows do not divide, some come twice. With workers, each yields every
    W-th batch, so that what arrives is in the order of no workers at all. Every iteration is the same epoch, until
    `set_epoch` says another.

    Args:
        path: The table.
        fields: The columns, and what becomes of them; None for all columns as they are.
        partition_filter: Which rows: (column, operator, value), all of which must hold.
        version: The table's version; None for the newest.
        use_fixed_rank: Whether `rank` and `num_ranks` count, and not what torch.distributed says.
        rank: Which of the readers this is.
        num_ranks: How many there are.
        num_workers: How many threads read, where this is not a worker of torch's.
        shuffle: Whether each epoch has an order of its own.
        batch_size: Rows that are read and dealt to workers together.
        drop_last: Kept, and left to the loader.
        storage_options: What fsspec is told to open the path with.
        seed: What the orders depend on.
    """

    def __init__(
        self,
        path: str,
        fields: Sequence[FieldSpec] | None = None,
        partition_filter: Sequence[Any] | None = None,
        version: int | None = None,
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
        super().__init__()
        self.path, self.version, self.storage_options = path, version, storage_options
        self.partition_filter, self.use_fixed_rank = partition_filter, use_fixed_rank
        self.num_workers, self.shuffle, self.batch_size, self.drop_last = num_workers, shuffle, batch_size, drop_last
        ranks = Ranks(fixed=use_fixed_rank, rank=rank, size=num_ranks)
        table = table_of(path, version, storage_options, ranks)
        self._check(table)
        asked = Asked.of(table, fields, partition_filter, ranks, num_workers)
        self.field_specs = list(asked.fields)
        shuffled = asked.ds.shuffle(seed=seed)  # which looks at the seed, whether it is needed or not
        self._ordered = shuffled if shuffle else asked.ds
        share = self._share = asked.shared(self._ordered)
        query = share._query  # noqa: SLF001 - a dataset has no other parts
        self.rank, self.num_ranks = query.rank, query.world_size
        self._asked = asked
        dealt = share.batch(1, last="wrap") if self.num_ranks > 1 else share.batch(batch_size, last="uneven")
        self._length = len(dealt) if self.num_ranks > 1 else share.num_rows
        self._samples = self._of(dealt)

    def _check(self, table: Any) -> None:
        """Refuse a table that the arguments do not fit; for those that have more of them."""

    def _of(self, dealt: Any) -> IterableDataset:
        """Return a stream of samples, in pieces as they are dealt."""
        return IterableDataset(dealt.map(self._asked.samples(rows=True)).using(threads=self._asked.threads))

    def process_data(self) -> Iterator[dict[str, Any]]:
        """Return this reader's samples; there are none in an empty table."""
        return _OneByOne(iter(self._samples) if self._length else iter(()))

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of another epoch, in workers that run already too."""
        self._samples.set_epoch(epoch)

    def count(self) -> int:
        """Return the rows of all ranks together."""
        return self._ordered.num_rows

    @staticmethod
    def decode_and_transform_record(item: Mapping[str, Any], field_specs: Sequence[FieldSpec]) -> dict[str, Any]:
        """Return what becomes of one row."""
        return sample(item, field_specs)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return this reader's samples."""
        return self.process_data()

    def __len__(self) -> int:
        """Return the samples of this rank."""
        return self._length
