"""`deltatorch.deltadataset`: samples of a Delta table, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils import data

from penstock.deltatorch._arguments import DeltaRead, RankArguments, open_for_ranks
from penstock.deltatorch._sample_map import SAMPLE, FieldSpec, sample_of
from penstock.torch import IterableDataset

__all__ = ["DeltaIterableDataset", "FieldSpec"]


class _SampleIterator(Iterator[dict[str, Any]]):
    """The samples of batches. After an error, unlike a generator, it does not end."""

    def __init__(self, batches: Iterator[Mapping[str, Any]]) -> None:
        self._batches = batches
        self._left: Iterator[dict[str, Any]] = iter(())

    def __next__(self) -> dict[str, Any]:
        while True:
            for sample in self._left:
                return sample
            self._left = iter(next(self._batches)[SAMPLE])


class DeltaIterableDataset(data.IterableDataset[dict[str, Any]]):
    """Samples of a Delta table, pinned to one version, for a `DataLoader` of your own.

    All ranks get the same number of samples; if the rows do not divide evenly, some are repeated. Of W workers, each yields
    every W-th batch, so that the order is the same as without workers. Every iteration is the same epoch, until `set_epoch`
    is called.

    Args:
        path: The table.
        fields: The columns, and how their values are converted; None for all columns.
        partition_filter: Conditions (column, operator, value) that all rows fulfil.
        version: The table's version; None for the newest.
        use_fixed_rank: Whether `rank` and `num_ranks` are used, instead of those of torch.distributed.
        rank: The number of this reader.
        num_ranks: The number of readers.
        num_workers: The number of threads, outside of worker processes of torch.
        shuffle: Whether rows are shuffled, anew in each epoch.
        batch_size: Rows that a worker yields one after the other.
        drop_last: Used by the loader only.
        storage_options: Options for fsspec to open the path.
        seed: Decides the orders.
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
        ranks = RankArguments(fixed=use_fixed_rank, rank=rank, size=num_ranks)
        table = open_for_ranks(path, version, storage_options, ranks)
        self._check(table)
        read = self._read = DeltaRead.of(table, fields, partition_filter, ranks, num_workers)
        self.field_specs = list(read.fields)
        shuffled = read.ds.shuffle(seed=seed)  # checks the seed, even if it is not used
        self._ordered = shuffled if shuffle else read.ds
        shard = self._shard = read.shard(self._ordered)
        query = shard._query  # noqa: SLF001 - a Dataset has no public query
        self.rank, self.num_ranks = query.rank, query.world_size
        batches = shard.batch(1, last="wrap") if self.num_ranks > 1 else shard.batch(batch_size, last="uneven")
        self._length = len(batches) if self.num_ranks > 1 else shard.num_rows
        self._samples = IterableDataset(batches.map(read.sample_map(rows=True)).using(threads=read.threads))

    def _check(self, table: Any) -> None:
        """Check the table; subclasses have more arguments to check."""

    def process_data(self) -> Iterator[dict[str, Any]]:
        """Return the samples of this rank."""
        return _SampleIterator(iter(self._samples) if self._length else iter(()))

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of another epoch, also in persistent workers."""
        self._samples.set_epoch(epoch)

    def count(self) -> int:
        """Return the number of rows of all ranks."""
        return self._ordered.num_rows

    @staticmethod
    def decode_and_transform_record(item: Mapping[str, Any], field_specs: Sequence[FieldSpec]) -> dict[str, Any]:
        """Return the sample of a row."""
        return sample_of(item, field_specs)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return the samples of this rank."""
        return self.process_data()

    def __len__(self) -> int:
        """Return the number of samples of this rank."""
        return self._length
