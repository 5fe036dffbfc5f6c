"""Mixtures in PyTorch: in Penstock's loader, on several ranks, and in torch's `DataLoader`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gloo_ranks import Ranks
from strategies import rows

import penstock as ps
from penstock.errors import ArgumentError
from penstock.testing import example

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def written(folder: Path, *sizes: int) -> list[str]:
    """Write tables whose ids begin a thousand apart, and return their paths."""
    for number, size in enumerate(sizes):
        (folder / str(number)).mkdir()
        table = rows(range(number * 1000, number * 1000 + size))
        pq.write_table(table, folder / str(number) / "0.parquet", row_group_size=7)
    return [str(folder / str(number)) for number in range(len(sizes))]


def mixture(tables: list[str], **options: Any) -> ps.Mixture:
    """Return a mixture of tables; the job `mixture` of the ranks builds the same."""
    weights = options.pop("weights", [2, 1])
    sources = [(ps.open(url).select("id").shuffle(seed=number), weights[number]) for number, url in enumerate(tables)]
    return ps.mix(sources, seed=1, **options).with_source()


def numbers(batches: Any) -> list[list[int]]:
    """Return the ids of each batch."""
    return [batch["id"].tolist() for batch in batches]


def test_a_loader_gives_tensors_of_all_sources(tmp_path: Path) -> None:
    """The batches of every epoch equal those of the NumPy loader, and are writable."""
    mixed = mixture(written(tmp_path, 100, 60), stop="all").batch(8)
    loader, plain = ps.torch.loader(mixed), ps.loader(mixed)

    assert isinstance(loader, torch.utils.data.DataLoader)
    assert (len(loader), loader.batch_size) == (len(mixed), 8)
    for _ in range(2):
        made = list(loader)
        assert numbers(made) == numbers(plain)
        assert all((batch["_source"] == batch["id"] // 1000).all() for batch in made)
        made[0]["id"].zero_()


def test_text_of_a_mixture_is_decoded(tmp_path: Path) -> None:
    """Text, which is a deferred column, comes as a list in the order of the ids."""
    tables = written(tmp_path, 30, 30)
    loader = ps.torch.loader(ps.mix([(ps.open(url), 1) for url in tables]).batch(12))

    for batch in loader:
        assert batch["name"] == [f"row {number}" for number in batch["id"].tolist()]


def test_a_mixture_of_batches_gives_whole_batches_as_tensors(tmp_path: Path) -> None:
    """Batches of sources stay whole. `batch_size` is None where their sizes differ."""
    one, other = (ps.open(url).select("id") for url in written(tmp_path, 40, 30))
    loader = ps.torch.loader(ps.mix([(one.batch(4), 1), (other.shuffle().batch(5), 1)], stop="all"))

    found = numbers(loader)
    assert loader.batch_size is None
    assert len(found) == len(loader)
    assert {len(batch) for batch in found} == {4, 5}
    assert [number for batch in found if len(batch) == 4 for number in batch][:40] == list(range(40))


def test_a_loader_saves_and_resumes(tmp_path: Path) -> None:
    """A state is JSON, and resumes with the batches that are left, on one rank or on three."""
    mixed = mixture(written(tmp_path, 100, 60)).batch(4)
    loader = ps.torch.loader(mixed)
    batches = iter(loader)
    seen = numbers(next(batches) for _ in range(5))
    state = json.loads(json.dumps(loader.state_dict()))
    again = ps.torch.loader(mixed)
    again.load_state_dict(state)
    left = numbers(batches)

    assert state == loader.state_at(5)
    assert numbers(again) == left
    elastic = []
    for rank in range(3):
        part = ps.torch.loader(mixed, rank=rank, world_size=3)
        part.load_state_dict(state)
        elastic += numbers(part)
    whole = {number for batch in seen + left for number in batch}
    found = [number for batch in seen + elastic for number in batch]
    assert len(set(found)) == len(found)
    assert set(found) <= {row["id"].item() for row in mixture([str(tmp_path / "0"), str(tmp_path / "1")])} | whole


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("size", [None, 6])
def test_workers_give_every_row_once(tmp_path: Path, workers: int, size: int | None) -> None:
    """Torch's `DataLoader` with any number of workers gives the rows or batches of the NumPy loader in every epoch."""
    mixed = mixture(written(tmp_path, 50, 30))
    mixed = mixed if size is None else mixed.batch(size)
    dataset = ps.torch.IterableDataset(mixed)
    plain = ps.loader(mixed)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)

    for epoch in range(2):
        dataset.set_epoch(epoch)
        assert [np.asarray(one["id"]).tolist() for one in loader] == [one["id"].tolist() for one in plain]
    assert len(dataset) == len(mixed)


@pytest.mark.slow
def test_spawned_workers_read_a_mixture(tmp_path: Path) -> None:
    """A mixture with a map gives the same batches in spawned workers."""
    mixed = mixture(written(tmp_path, 30, 30)).batch(6).map(lambda batch: {"id": batch["id"] + 1})
    loader = torch.utils.data.DataLoader(
        ps.torch.IterableDataset(mixed), batch_size=None, num_workers=1, multiprocessing_context="spawn"
    )

    assert numbers(loader) == numbers(mixed)


@pytest.mark.parametrize("size", [2, 3])
def test_real_ranks_agree_and_share_an_epoch(ranks: Ranks, tmp_path: Path, size: int) -> None:
    """Ranks of a process group read the same batches as `.shard()` gives without one."""
    tables = written(tmp_path, 90, 50)
    found = ranks.done("mixture", size, tables=tables, weights=[2, 1], size=4)

    for rank, result in enumerate(found):
        loader = ps.loader(mixture(tables).batch(4).shard(rank, size))
        assert result == [numbers(loader) for _ in range(2)]


def test_ranks_with_different_weights_all_raise(ranks: Ranks, tmp_path: Path) -> None:
    """A weight that differs on one rank raises an error on all ranks."""
    messages = ranks.failed("mixture", 2, tables=written(tmp_path, 30, 30), weights=[[2, 1], [1, 1]], size=4)

    for one in messages:
        assert "Rank 1 asks for the shares [1, 1], and rank 0 for [2, 1]. All ranks need the same query." in one


def test_ranks_with_different_repeats_all_raise(ranks: Ranks, tmp_path: Path) -> None:
    """A `.repeat()` that differs on one rank raises an error on all ranks, of which one would wait forever."""
    messages = ranks.failed("mixture", 2, tables=written(tmp_path, 30, 30), weights=[2, 1], size=4, repeats={"1": 2})

    for one in messages:
        assert "Rank 1 asks for .repeat() 2, and rank 0 for 1. All ranks need the same query." in one


def test_ranks_whose_mixtures_have_different_columns_all_raise(ranks: Ranks, tmp_path: Path) -> None:
    """A `.with_source()` that is missing on one rank raises an error on all ranks."""
    messages = ranks.failed("mixture", 2, tables=written(tmp_path, 30, 30), weights=[2, 1], size=4, sourceless=1)

    for one in messages:
        assert "Rank 1 asks for .with_source() False, and rank 0 for True. All ranks need the same query." in one


def test_other_types_than_datasets_are_refused() -> None:
    """A loader refuses what is no dataset or mixture, and `MapDataset` refuses a mixture."""
    with pytest.raises(ArgumentError, match=r"loader\(\) got str"):
        ps.torch.loader("mixture")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="Got Mixture; expected"):
        ps.torch.MapDataset(ps.mix([(example(), 1)]))  # type: ignore[arg-type]


def test_a_loader_pads_lists_of_all_sources(tmp_path: Path) -> None:
    """The policies that the error advises for lists work: `Pad` gives one tensor, `Offsets` a nested one."""
    for name in ("web", "code"):
        data = {"tokens": [list(range(n % 4)) for n in range(20)]}
        ps.write(tmp_path / name, data=pa.table(data), row_group_rows=5)
    mixed = ps.mix([(ps.open(tmp_path / "web"), 0.6), (ps.open(tmp_path / "code"), 0.4)]).batch(10)
    with pytest.raises(ArgumentError, match=r"ragged\(penstock.Pad\(\), 'tokens'\)"):
        next(iter(ps.torch.loader(mixed)))

    padded = next(iter(ps.torch.loader(mixed.ragged(ps.Pad(), "tokens"))))
    nested = next(iter(ps.torch.loader(mixed.ragged(ps.Offsets(), "tokens"), jagged=["tokens"])))

    assert padded["tokens"].shape == (10, 3)
    assert padded["tokens_length"].tolist() == [len(cell) for cell in nested["tokens"].unbind()]
