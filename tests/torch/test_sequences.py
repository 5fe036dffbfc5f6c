"""Sequences as tensors: one more dimension, or one tensor per offset; sharded and resumed like rows."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.testing import MemoryFormat

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def frames() -> ps.Dataset:
    """Return twenty rows of two users, each with a vector, in row groups of ten."""
    ids = range(20)
    columns = {
        "time": pa.array(ids, pa.int64()),
        "user": pa.array([number % 2 for number in ids], pa.int8()),
        "v": pa.array([[number, 0.5] for number in ids], pa.list_(pa.float32(), 2)),
    }
    return MemoryFormat.of(pa.table(columns), row_group_rows=10).open()


def test_tensors_have_one_dimension_more() -> None:
    """The second dimension of a tensor is the row in its sequence."""
    ds = frames().sequence(ps.Sequence(length=3, by="time", group="user", scope="table"))
    (batch,) = ps.torch.loader(ds.batch(16))

    assert {name: (values.shape, values.dtype) for name, values in batch.items()} == {
        "time": ((16, 3), torch.int64),
        "user": ((16, 3), torch.int8),
        "v": ((16, 3, 2), torch.float32),
    }
    assert batch["time"].tolist() == [[number, number + 2, number + 4] for number in range(16)]
    assert torch.equal(batch["v"][..., 0], batch["time"].to(torch.float32))


def test_offsets_are_tensors_of_their_own() -> None:
    """Each column has one tensor per offset, whose name contains both."""
    ds = frames().sequence(ps.Sequence(offsets={-1: ["v"], 0: ["time"]}, by="time"))
    batch = next(iter(ps.torch.loader(ds.batch(4))))

    assert {name: values.shape for name, values in batch.items()} == {"v/-1": (4, 2), "time/0": (4,)}
    assert batch["v/-1"][:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert batch["time/0"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_sequences_and_resume(ranks: int) -> None:
    """Every sequence comes once over all ranks, and a saved state resumes with the identical rest."""
    ds = frames().sequence(ps.Sequence(length=4, by="time")).shuffle(seed=2).batch(2, last="pad")

    def loader(rank: int) -> ps.torch.Loader:
        return ps.torch.loader(ds, rank=rank, world_size=ranks)

    found = []
    for rank in range(ranks):
        first, again = loader(rank), loader(rank)
        batches = iter(first)
        batch = next(batches)
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        rest = list(batches)
        assert [one["time"].tolist() for one in again] == [one["time"].tolist() for one in rest]
        found += [row[0] for one in (batch, *rest) for row in one["time"][one["_valid"]].tolist()]
    assert sorted(found) == [*range(7), *range(10, 17)]


def test_batches_belong_to_the_consumer() -> None:
    """Writing to the tensors of one epoch does not change the next one."""
    ds = frames().sequence(ps.Sequence(length=2, by="time")).batch(5)
    for batch in ps.torch.loader(ds):
        batch["v"] += 1

    assert next(iter(ps.torch.loader(ds)))["v"][0].tolist() == [[0.0, 0.5], [1.0, 0.5]]
    assert np.asarray(next(iter(ds))["v"]).flags.writeable


def test_a_map_of_rows_leaves_objects_of_sequences_as_they_are() -> None:
    """The texts of a sequence stay together for any batch size, and for any kind of list that a map returns."""
    table = pa.table({"t": [0, 1, 2, 3], "s": ["a", "b", "c", "d"]})
    ds = MemoryFormat([[table]]).open().sequence(ps.Sequence(length=2, by="t")).batch(2, last="uneven")
    mapped = ds.map(lambda row: row, per_row=True)

    whole = [batch["s"] for batch in ps.torch.loader(ds)]
    assert whole == [[["a", "b"], ["b", "c"]], [["c", "d"]]]
    assert [batch["s"] for batch in ps.torch.loader(mapped)] == whole
    assert [batch["s"].shape for batch in ps.loader(mapped)] == [(2, 2), (1, 2)]
    loud = ds.map(lambda row: {"s": [text.upper() for text in row["s"]]}, per_row=True)
    assert [batch["s"] for batch in ps.torch.loader(loud)] == [[["A", "B"], ["B", "C"]], [["C", "D"]]]
