"""`MapDataset`: torch requests the rows of a batch in one call, and only the pages that hold them are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import penstock as ps
from penstock._engine.lookup.row_lookup import RowTaker
from penstock._engine.parquet.file_blobs import LocalFile
from penstock.codecs import Npy


def pixels(number: int) -> npt.NDArray[np.uint8]:
    """Return the random pixels of a row, which do not compress."""
    return np.random.default_rng(number).integers(0, 256, 20_000, dtype=np.uint8)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write a table of large arrays, and return its path."""
    schema = ps.Schema("Arrays", [ps.Field("id", np.int64), ps.Field("x", np.uint8, (20_000,), Npy())])
    with ps.write(tmp_path / "table", schema, row_group_rows=100) as writer:
        for number in range(300):
            writer.append({"id": number, "x": pixels(number)})
    return tmp_path / "table"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_requested_in_one_call(table: Path, workers: int) -> None:
    """Torch requests the rows of each batch in one call. Every row comes once, with workers too."""
    dataset = ps.torch.MapDataset(ps.open(table))
    requested: list[int] = []
    rows = RowTaker.rows

    def watched(self: RowTaker, numbers: Any) -> Any:
        requested.append(len(numbers))
        return rows(self, numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowTaker, "rows", watched)
        options: Any = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
        batches = list(torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True, **options))

    assert requested == ([] if workers else [32] * 9 + [12])  # worker processes have a list of their own
    assert sorted(number for batch in batches for number in batch["id"].tolist()) == list(range(300))
    for batch in batches:
        assert (batch["x"].numpy() == np.stack([pixels(number) for number in batch["id"].tolist()])).all()


def test_a_batch_reads_little_more_than_its_rows(table: Path) -> None:
    """A batch by number does not read the whole row groups that hold its rows."""
    dataset: Any = ps.torch.MapDataset(ps.open(table))
    dataset[0]
    read: list[int] = []
    fill, peek = LocalFile.fill, LocalFile.peek

    def filled(self: LocalFile, memory: memoryview, start: int) -> int:
        read.append(len(memory))
        return fill(self, memory, start)

    def peeked(self: LocalFile, start: int, size: int) -> bytes:
        read.append(size)
        return peek(self, start, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFile, "fill", filled)
        patch.setattr(LocalFile, "peek", peeked)
        found = dataset.__getitems__([5, 150, 250, 7])

    assert [int(row["id"]) for row in found] == [5, 150, 250, 7]
    assert all((row["x"].numpy() == pixels(int(row["id"]))).all() for row in found)
    assert 80_000 < sum(read) < 200_000
