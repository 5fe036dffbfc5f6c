"""One test for each known defect of DeltaTorch 0.0.3: its name states the defect, its docstring what Penstock does."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from delta_logs import Lake, column, metadata, protocol

import penstock as ps
from penstock.errors import ArgumentError, DataError, EmptyDatasetError, FilterError
from penstock.formats.delta import DeltaFormat

torch = pytest.importorskip("torch")
deltatorch = pytest.importorskip("penstock.deltatorch")
skipping = pytest.importorskip("penstock.deltatorch.skip_batch_deltadataset")
FieldSpec, create_pytorch_dataloader = deltatorch.FieldSpec, deltatorch.create_pytorch_dataloader

pytestmark = pytest.mark.torch

ID = [FieldSpec("id")]


def written(path: Path, ids: Any, **more: Any) -> str:
    """Write a table of ids in files of ten rows, and return its path."""
    every = list(ids)
    for at in range(0, len(every), 10):
        columns = {"id": every[at : at + 10], **{name: values[at : at + 10] for name, values in more.items()}}
        ps.write(path, data=columns, format=DeltaFormat(), mode="append", partition_by="part" if "part" in more else ())
    return str(path)


def ids(batches: Any) -> list[int]:
    """Return the ids of all batches."""
    return [one for batch in batches for one in batch["id"].tolist()]


def write_with_log(path: Path, *, log_entry: dict[str, Any], fields: list[Any], stats: Any = "rows", **options: str) -> str:
    """Write a table with its own log entries and one file, whose column `stored` is 0 to 9. Return its path."""
    lake = Lake(path)
    lake.commit(0, log_entry, metadata(fields, **options), lake.add("0.parquet", pa.table({"stored": range(10)}), stats=stats))
    return str(path)


def test_a_partition_filter_returned_rows_of_other_partitions(tmp_path: Path) -> None:
    """A partition filter decides which rows come, and the length."""
    path = written(tmp_path / "t", range(60), part=["a", "b", "c"] * 20)
    loader = create_pytorch_dataloader(path, "id", ID, [("part", "=", "b")])

    assert sorted(ids(loader)) == list(range(1, 60, 3))
    assert (len(loader), len(loader.dataset)) == (1, 20)


@pytest.mark.parametrize("given", [range(1, 41), range(0, 400, 10), [7, 7, 3, -1]], ids=["from 1", "gaps", "twice"])
def test_ids_that_do_not_count_from_0_lost_rows(tmp_path: Path, given: Any) -> None:
    """Rows are distributed by the row counts of files, so that ids may have any values."""
    path = written(tmp_path / "t", given)

    assert Counter(ids(create_pytorch_dataloader(path, "id", ID))) == Counter(given)


def test_tables_that_enable_deletion_vectors_were_refused(tmp_path: Path) -> None:
    """Tables that enable deletion vectors are read. Here no row was deleted yet."""
    log_entry = protocol("deletionVectors")
    path = write_with_log(
        tmp_path / "t", log_entry=log_entry, fields=[column("stored", "long")], delta__enableDeletionVectors="true"
    )

    assert sorted(one for batch in create_pytorch_dataloader(path) for one in batch["stored"].tolist()) == list(range(10))


def test_mapped_columns_were_silently_null(tmp_path: Path) -> None:
    """With column mapping, a column is found by its physical name. The table has reader version 2."""
    fields = [column("id", "long", number=1, called="stored")]
    path = write_with_log(tmp_path / "t", log_entry=protocol(reader=2), fields=fields, delta__columnMapping__mode="name")

    assert sorted(ids(create_pytorch_dataloader(path, "id", ID))) == list(range(10))


def test_newer_deltalake_broke_it(tmp_path: Path) -> None:
    """A table is read without the package deltalake, so its version does not matter."""
    path = written(tmp_path / "t", range(25))
    script = (
        "import sys; sys.modules['deltalake'] = None\n"
        "from penstock.deltatorch import FieldSpec, create_pytorch_dataloader\n"
        "print(sum(len(batch['id']) for batch in create_pytorch_dataloader(sys.argv[1], 'id', [FieldSpec('id')])))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script, path], env=environment, capture_output=True, text=True, check=False)

    assert done.stdout == "25\n", done.stderr


def test_files_without_statistics_had_no_length(tmp_path: Path) -> None:
    """Rows of files without statistics in the log are counted from Parquet footers."""
    path = write_with_log(tmp_path / "t", log_entry=protocol(), fields=[column("stored", "long")], stats=None)
    loader = create_pytorch_dataloader(path, batch_size=4)

    assert (len(loader), len(loader.dataset), len(list(loader))) == (3, 10, 3)


def test_shuffling_was_of_one_record_batch_and_without_a_seed(tmp_path: Path) -> None:
    """Shuffling mixes all files, differs by epoch, repeats by seed, can be resumed, and does not use Python's `random`."""
    path = written(tmp_path / "t", range(100))
    random.seed(5)
    before = random.getstate()
    first, again = (create_pytorch_dataloader(path, "id", ID, shuffle=True, seed=3, batch_size=10) for _ in range(2))
    epochs = [ids(first), ids(first)]
    iterator = iter(again)
    seen = ids(next(iterator) for _ in range(3))
    resumed = create_pytorch_dataloader(path, "id", ID, shuffle=True, seed=3, batch_size=10)
    resumed.load_state_dict(json.loads(json.dumps(again.state_dict())))

    assert random.getstate() == before
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(100))
    assert epochs[0] != epochs[1]
    assert len({one // 10 for one in epochs[0][:20]}) > 4
    assert seen + ids(resumed) == epochs[0]


def test_every_worker_read_every_file(tmp_path: Path) -> None:
    """Each of two ranks reads only its half of the files, once per epoch, with several threads."""
    path = written(tmp_path / "t", range(99, -1, -1))  # in descending order, which a filter on ids cannot use
    loaders = [
        create_pytorch_dataloader(path, "id", ID, use_fixed_rank=True, rank=rank, num_ranks=2, num_workers=4, batch_size=5)
        for rank in range(2)
    ]
    found = [ids(loader) for loader in loaders]
    units = [loader.engine.stats().units_read for loader in loaders]

    assert sorted(sum(found, [])) == list(range(100))
    assert units == [5, 5]


@pytest.mark.parametrize("rows", [4, 5, 10, 13])
def test_the_last_rank_got_fewer_rows_and_many_workers_wrong_ones(tmp_path: Path, rows: int) -> None:
    """Ranks take equal steps and miss no row, even with more workers than rows. More ranks than rows raise an error."""
    path = written(tmp_path / "t", range(rows))
    loaders = [
        create_pytorch_dataloader(path, "id", ID, use_fixed_rank=True, rank=rank, num_ranks=4, num_workers=8, batch_size=2)
        for rank in range(4)
    ]
    found = [list(loader) for loader in loaders]

    assert {len(batches) for batches in found} == {len(loader) for loader in loaders}
    assert len({len(batches) for batches in found}) == 1
    assert {one for batches in found for one in ids(batches)} == set(range(rows))
    with pytest.raises(EmptyDatasetError, match=f"has {rows} rows to hand out, fewer than its 40 ranks"):
        list(create_pytorch_dataloader(path, "id", ID, use_fixed_rank=True, rank=0, num_ranks=40))


def test_a_single_process_was_rank_1_of_1(tmp_path: Path) -> None:
    """A single process is rank 0 of 1, and reads every row."""
    dataset = deltatorch.IDBasedDeltaDataset(written(tmp_path / "t", range(7)), "id", ID)

    assert (dataset.rank, dataset.num_ranks) == (0, 1)
    assert sorted(row["id"] for row in dataset) == list(range(7))


def test_a_target_name_left_the_source_in_the_sample(tmp_path: Path) -> None:
    """Samples contain only the target, in loaders and in datasets."""
    path = written(tmp_path / "t", range(4), raw=[b"ab"] * 4)
    fields = [FieldSpec("raw", decode_numpy_and_apply_shape=(2,), target_name="pixels")]

    assert list(next(iter(create_pytorch_dataloader(path, "id", fields)))) == ["pixels"]
    assert list(next(iter(deltatorch.IDBasedDeltaDataset(path, "id", fields)))) == ["pixels"]


def test_only_arrays_of_two_dimensions_were_decoded_and_nulls_structs_and_text_were_undefined(tmp_path: Path) -> None:
    """Arrays may have any type and shape, text is a list, structs are dicts, and a null raises DataError."""
    path = tmp_path / "t"
    cells = np.arange(6, dtype=np.int16)
    columns = {"a": [cells.tobytes()] * 2, "t": ["x", "y"], "s": [{"u": 1, "v": "p"}, {"u": 2, "v": "q"}], "n": [None, 1]}
    ps.write(path, data=pa.table(columns), format=DeltaFormat())
    array = FieldSpec("a", decode_numpy_and_apply_shape=(1, 2, 3), dtype=np.int16)
    nested = FieldSpec("s", transform=lambda value: value["u"])
    batch = next(iter(create_pytorch_dataloader(str(path), None, [array, FieldSpec("t"), nested])))
    whole = next(iter(create_pytorch_dataloader(str(path), None, [FieldSpec("s")])))

    assert torch.equal(batch["a"], torch.from_numpy(np.stack([cells.reshape(1, 2, 3)] * 2)))
    assert (batch["t"], batch["s"].tolist()) == (["x", "y"], [1, 2])
    assert (whole["s"]["u"].tolist(), whole["s"]["v"]) == ([1, 2], ["p", "q"])
    with pytest.raises(DataError, match="Column 'n' has a null; expected values only, because torch cannot batch None"):
        next(iter(create_pytorch_dataloader(str(path), None, [FieldSpec("n")])))


def test_the_dataset_that_skips_confused_its_arguments(tmp_path: Path) -> None:
    """`SkipReadDeltaDataset` uses the given rank and number of ranks."""
    dataset = skipping.SkipReadDeltaDataset(written(tmp_path / "t", range(9)), ID, True, 1, 3)  # noqa: FBT003 - as it was called

    assert (dataset.rank, dataset.num_ranks, len(dataset), len(list(dataset))) == (1, 3, 3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("context", [None, "fork"])
def test_each_worker_opened_the_newest_version(tmp_path: Path, context: str | None) -> None:
    """Workers read the version of the loader, even if they start after a later commit."""
    path = written(tmp_path / "t", range(40))
    loader = create_pytorch_dataloader(path, "id", ID, multiprocessing_context=context)
    iterator = iter(loader)
    seen = ids([next(iterator)])
    ps.write(path, data={"id": [1000]}, format=DeltaFormat(), mode="overwrite")

    assert sorted(seen + ids(iterator)) == list(range(40))
    assert sorted(ids(loader)) == list(range(40))


def test_timestamps_came_without_their_time_zone(tmp_path: Path) -> None:
    """A transform gets a datetime with its time zone, and None for a null."""
    moment = datetime(2020, 1, 1, 12, tzinfo=UTC)
    column = pa.array([moment, None], pa.timestamp("us", "UTC"))
    ps.write(tmp_path / "t", data=pa.table({"at": column}), format="delta")
    got: list[Any] = []

    def transform(value: Any) -> int:
        got.append(value)
        return 0

    list(create_pytorch_dataloader(str(tmp_path / "t"), fields=[FieldSpec("at", transform=transform)]))

    assert got == [moment, None]
    assert got[0].timestamp() == moment.timestamp()


@pytest.mark.parametrize(
    "lists",
    [
        pa.array([[1.5, None], [2.5], None, []]),
        pa.array([[1, None], [2], None, []]),
        pa.array([[True, None], [False], None, []]),
        pa.array([[[1, None], None], [[2]], None, []]),
        pa.array([["a", None], ["b"], None, []]),
    ],
    ids=["floats", "numbers", "booleans", "lists", "texts"],
)
def test_nulls_in_lists_became_numbers(tmp_path: Path, lists: pa.Array) -> None:
    """A transform gets None for a null in a list. Without a transform such a list raises DataError."""
    ps.write(tmp_path / "t", data=pa.table({"list": lists}), format="delta")
    got: list[Any] = []

    def listed(value: Any) -> Any:
        return [listed(one) for one in value] if isinstance(value, list | np.ndarray) else value

    def transform(value: Any) -> int:
        got.append(listed(value))
        return 0

    list(create_pytorch_dataloader(str(tmp_path / "t"), fields=[FieldSpec("list", transform=transform)]))

    assert got == lists.to_pylist()
    with pytest.raises(DataError, match="'list' has a null"):
        list(create_pytorch_dataloader(str(tmp_path / "t"), fields=[FieldSpec("list")]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"fields": [FieldSpec("id", transform=3)]}, "transform=3; expected a function of one value"),
        ({"fields": [FieldSpec("id", dtype="zzz")]}, "dtype='zzz'; expected a type of NumPy"),
        ({"fields": [FieldSpec("id", dtype=np.float32)]}, "Give decode_numpy_and_apply_shape too"),
        ({"seed": -1}, "seed"),
        ({"partition_filter": [("id", "=", "one")]}, "compares column 'id' with 'one', and the column is int64"),
    ],
    ids=["transform", "dtype", "no shape", "seed", "filter"],
)
def test_invalid_arguments_were_accepted(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    """Invalid arguments raise an error when the loader is made."""
    path = written(tmp_path / "t", range(10))

    with pytest.raises((ArgumentError, FilterError), match=re.escape(expected)):
        create_pytorch_dataloader(path, **options)


def test_an_empty_table_has_no_samples(tmp_path: Path) -> None:
    """A dataset over an empty table yields nothing, and raises no error."""
    ps.write(tmp_path / "t", data=pa.table({"id": pa.array([], pa.int64())}), format="delta")

    assert list(deltatorch.DeltaIterableDataset(str(tmp_path / "t"))) == []


@pytest.mark.parametrize("options", [{}, {"multiprocessing_context": "fork", "num_workers": 1}], ids=["threads", "processes"])
def test_an_epoch_without_a_batch_passed_silently(tmp_path: Path, options: dict[str, Any]) -> None:
    """An epoch without a batch raises EmptyDatasetError, which names the arguments of the loader."""
    path = written(tmp_path / "t", range(20), part=["a", "b"] * 10)
    short = create_pytorch_dataloader(path, fields=ID, batch_size=32, drop_last=True, **options)
    empty = create_pytorch_dataloader(path, fields=ID, partition_filter=[("part", "=", "c")], **options)

    with pytest.raises(EmptyDatasetError, match="has 20 rows, and a batch, of all 1 ranks together, 32: drop_last=True"):
        iter(short)
    with pytest.raises(EmptyDatasetError, match=re.escape("has 0 rows that pass [('part', '=', 'c')]")):
        iter(empty)
