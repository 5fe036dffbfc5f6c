"""The arguments that `make_reader`, `make_batch_reader` and `Reader` share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import index
from typing import Any, Self

import numpy as np

from penstock._engine.query.query import MEMORY_LIMIT
from penstock.petastorm.cache import NullCache
from penstock.petastorm.local_disk_cache import LocalDiskCache
from penstock.petastorm.predicates import PredicateBase
from penstock.petastorm.selectors import RowGroupSelectorBase
from penstock.petastorm.workers_pool.dummy_pool import DummyPool
from penstock.petastorm.workers_pool.process_pool import ProcessPool
from penstock.petastorm.workers_pool.thread_pool import ThreadPool

__all__ = ["LOCAL_DISK_CACHE", "NULL_CACHE", "ReaderArguments", "make_cache", "make_pool"]

NULL_CACHE = "null"
LOCAL_DISK_CACHE = "local-disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderArguments:
    """The arguments of a reader; `argument_docs` has their meanings.

    Petastorm fixed the names, the order and the defaults of the arguments of its functions. One object passes them on, so
    that they are not listed again.
    """

    schema_fields: Any = None
    seed: Any = None
    shuffle_rows: bool = False
    shuffle_row_groups: bool = True
    shuffle_row_drop_partitions: Any = 1
    predicate: Any = None
    rowgroup_selector: Any = None
    num_epochs: Any = 1
    cur_shard: Any = None
    shard_count: Any = None
    transform_spec: Any = None
    is_batched_reader: bool = False
    filters: Any = None
    shard_seed: Any = None
    shard_by: Any = "row_groups"
    codecs: Sequence[Any] = ()
    memory_limit: int | None = None
    decode: bool = False
    batch_size: Any = None
    drop_last: bool = False

    @classmethod
    def from_locals(cls, variables: Mapping[str, Any]) -> Self:
        """Return the arguments of a function, from its local variables."""
        return cls(**{field.name: variables[field.name] for field in fields(cls) if field.name in variables})

    def as_dict(self) -> dict[str, Any]:
        """Return all arguments by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def seed_or_random(self) -> int:
        """The seed of the user, or a random one."""
        name = "shard_seed" if self.shard_seed and self.seed is None else "seed"
        seed = getattr(self, name)
        return int.from_bytes(os.urandom(7), "little") if seed is None else _as_seed(name, seed) % (1 << 63)

    @property
    def seed_of_shard(self) -> int | None:
        """The seed of the order of a shard's row groups before they are shuffled; None for stored order.

        As in Petastorm, `shard_seed` replaces `seed` unless it is 0. If row groups are shuffled, `seed` alone decides their
        order.
        """
        if self.shard_seed:
            return _as_seed("shard_seed", self.shard_seed)
        return None if self.seed is None or self.shuffle_row_groups else _as_seed("seed", self.seed)

    @property
    def shard(self) -> tuple[int, int] | None:
        """The number of this shard, and of all shards; None for the whole dataset."""
        if self.cur_shard is None and self.shard_count is None:
            return None
        if not (_is_integer(self.cur_shard) and _is_integer(self.shard_count)) or self.shard_count < 1:
            msg = (
                "partition and num_partitions must be ints and both specified to use partitioning: cur_shard is "
                f"{self.cur_shard!r} and shard_count {self.shard_count!r}."
            )
            raise ValueError(msg)
        return int(self.cur_shard), int(self.shard_count)

    @property
    def memory(self) -> int:
        """The memory limit in bytes."""
        return self.memory_limit or MEMORY_LIMIT

    def check(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: If one has a wrong type or value.
        """
        if self.num_epochs is not None and not (_is_integer(self.num_epochs) and self.num_epochs > 0):
            raise ValueError(f"iterations must be positive integer or None, and num_epochs is {self.num_epochs!r}.")
        if self.predicate is not None and not isinstance(self.predicate, PredicateBase):
            raise ValueError("predicate parameter is expected to be derived from PredicateBase")
        if self.rowgroup_selector is not None and not isinstance(self.rowgroup_selector, RowGroupSelectorBase):
            raise ValueError("rowgroup_selector parameter is expected to be derived from RowGroupSelectorBase")
        if self.batch_size is not None and (not isinstance(self.batch_size, (int, np.integer)) or self.batch_size < 1):
            raise ValueError(f"batch_size must be a positive integer or None, and is {self.batch_size!r}.")
        if self.shard_by not in ("row_groups", "rows"):
            raise ValueError(f'shard_by must be "row_groups" or "rows", and is {self.shard_by!r}.')
        parts = self.shuffle_row_drop_partitions
        if not isinstance(parts, (int, np.integer)) or parts < 1:
            raise ValueError(
                f"shuffle_row_drop_partitions must be a positive integer, and is {parts!r}. 1 leaves row groups whole."
            )
        # Any object with these attributes is a TransformSpec.
        spec = self.transform_spec
        if spec is not None and not all(hasattr(spec, name) for name in ("func", "removed_fields", "edit_fields")):
            msg = f"transform_spec must be a TransformSpec or None, and is {spec!r}. Give one: TransformSpec(the_function)."
            raise ValueError(msg)


def _as_seed(name: str, value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        msg = f"{name} must be a whole number or None, and is {value!r}. Give one; 0 is a seed like others."
        raise ValueError(msg) from None


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def make_pool(kind: str, workers_count: int, results_queue_size: int, *, zmq_copy_buffers: bool) -> Any:
    """Return a pool of Petastorm.

    Raises:
        ValueError: If the kind is unknown.
    """
    if kind == "thread":
        return ThreadPool(workers_count, results_queue_size)
    if kind == "process":
        return ProcessPool(workers_count, None, zmq_copy_buffers=zmq_copy_buffers)
    if kind == "dummy":
        return DummyPool()
    raise ValueError(f"Unknown reader_pool_type: {kind}. It is one of 'thread', 'process' and 'dummy'.")


def make_cache(
    kind: str | None, location: str | None, size_limit: int | None, row_size: int | None, settings: Mapping[str, Any] | None
) -> Any:
    """Return a cache of row groups.

    Raises:
        ValueError: If the kind is unknown, or an option of a cache on disk is missing.
    """
    if kind in (None, NULL_CACHE):
        return NullCache()
    if kind == LOCAL_DISK_CACHE:
        if None in (location, size_limit, row_size):
            msg = "cache_type='local-disk' needs cache_location, cache_size_limit and cache_row_size_estimate. Give all three."
            raise ValueError(msg)
        return LocalDiskCache(location, size_limit, row_size, **(settings or {}))  # type: ignore[arg-type] # it says what is wrong
    raise ValueError(f"Unknown cache_type: {kind}. It is one of 'null' and 'local-disk'.")
