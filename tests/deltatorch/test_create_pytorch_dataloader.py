"""`create_pytorch_dataloader` and its datasets: the interface of DeltaTorch without its defects."""

from __future__ import annotations

import io
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.codecs import Jpeg, Raw
from penstock.errors import ArgumentError, ColumnNotFoundError, DataError, FilterError

torch = pytest.importorskip("torch")
deltalake = pytest.importorskip("deltalake")
deltatorch = pytest.importorskip("penstock.deltatorch")
skipping = pytest.importorskip("penstock.deltatorch.skip_batch_deltadataset")
DataLoader, FieldSpec = torch.utils.data.DataLoader, deltatorch.FieldSpec
create_pytorch_dataloader, IDBasedDeltaDataset = deltatorch.create_pytorch_dataloader, deltatorch.IDBasedDeltaDataset

pytestmark = pytest.mark.torch

ROWS = 789
FIELDS = [FieldSpec("id"), FieldSpec("text")]


def write_news(path: Path, *, first: int = 0, step: int = 1, **options: Any) -> str:
    """Write a table of ids, texts and a boolean partition, and return its path."""
    ids = list(range(first, first + ROWS * step, step))
    table = pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "text": [f"news {one}" for one in ids],
            "filter_fld": [at % 3 == 0 for at in range(ROWS)],
            "score": pa.array(ids, pa.float32()),
        }
    )
    deltalake.write_deltalake(str(path), table, partition_by=["filter_fld"], **options)
    return str(path)


def ids(batches: Any) -> list[int]:
    """Return the ids of all batches."""
    return [one for batch in batches for one in batch["id"].tolist()]


def test_a_table_is_read_in_batches_with_an_exact_length(tmp_path: Path) -> None:
    """A loader is a `DataLoader` of torch, has the attributes of DeltaTorch's, and yields every row once."""
    loader = create_pytorch_dataloader(write_news(tmp_path / "t"), "id", FIELDS)
    batches = list(loader)

    assert isinstance(loader, DataLoader)
    assert (len(loader), len(batches), len(loader.dataset), loader.batch_size) == (25, 25, ROWS, 32)
    assert sorted(ids(batches)) == list(range(ROWS))
    assert batches[0]["text"] == [f"news {one}" for one in batches[0]["id"].tolist()]


@pytest.mark.parametrize(("first", "step"), [(1, 1), (0, 7), (-5, 3)], ids=["from 1", "gaps", "negative"])
def test_ids_may_have_any_values(tmp_path: Path, first: int, step: int) -> None:
    """Ids that begin with 1, have gaps or are negative lose no row over all ranks."""
    path = write_news(tmp_path / "t", first=first, step=step)
    parts = [
        create_pytorch_dataloader(path, "id", FIELDS, use_fixed_rank=True, rank=rank, num_ranks=3, batch_size=1)
        for rank in range(3)
    ]

    assert {one for part in parts for one in ids(part)} == set(range(first, first + ROWS * step, step))


def test_the_id_may_be_left_out(tmp_path: Path) -> None:
    """Without an id column every row comes. Without fields every column comes."""
    loader = create_pytorch_dataloader(write_news(tmp_path / "t"))

    assert sorted(ids(loader)) == list(range(ROWS))
    assert list(next(iter(loader))) == ["id", "text", "filter_fld", "score"]


def test_cells_come_as_they_are_stored(tmp_path: Path) -> None:
    """Columns that the schema declares as arrays or images come as bytes, which a FieldSpec converts."""
    pixels, photo = np.arange(12, dtype=np.uint8).reshape(3, 4), np.full((8, 8, 3), 200, np.uint8)
    fields = [ps.Field("pixels", np.uint8, (3, 4), Raw()), ps.Field("photo", np.uint8, (8, 8, 3), Jpeg(90))]
    ps.write(tmp_path / "t", ps.Schema("Photos", fields), [{"pixels": pixels, "photo": photo}] * 4, format="delta")
    shaped = FieldSpec("pixels", decode_numpy_and_apply_shape=(3, 4))
    opened = FieldSpec("photo", load_image_using_pil=True, transform=np.array)
    kinds = FieldSpec("pixels", transform=lambda cell: int(type(cell) is bytes), target_name="is_bytes")

    (batch,) = create_pytorch_dataloader(str(tmp_path / "t"), fields=[shaped, opened, kinds])

    assert (batch["pixels"].numpy() == pixels).all()
    assert (np.abs(batch["photo"].numpy().astype(int) - photo) < 8).all()
    assert batch["is_bytes"].tolist() == [1] * 4
    assert deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["pixels"].to_pylist() == [pixels.tobytes()] * 4


def test_an_unknown_id_column_raises(tmp_path: Path) -> None:
    """An id column that is not in the table raises ColumnNotFoundError, which suggests a similar name."""
    with pytest.raises(ColumnNotFoundError, match=r"Column 'idd' is not in the table\. .* Did you mean 'id'\?"):
        create_pytorch_dataloader(write_news(tmp_path / "t"), "idd", FIELDS)


@pytest.mark.parametrize("value", ["true", "True", True])
def test_a_partition_filter_gives_exactly_that_partition(tmp_path: Path, value: object) -> None:
    """A partition filter decides the rows and the length. Its value may be text or a boolean."""
    loader = create_pytorch_dataloader(write_news(tmp_path / "t"), "id", FIELDS, [("filter_fld", "=", value)])

    assert sorted(ids(loader)) == list(range(0, ROWS, 3))
    assert len(loader) == math.ceil(ROWS / 3 / 32)


def test_a_partition_filter_supports_other_operators(tmp_path: Path) -> None:
    """A filter may have lists, comparisons and several conditions, with values as text."""
    path = write_news(tmp_path / "t")
    loader = create_pytorch_dataloader(path, None, FIELDS, [("filter_fld", "in", ["false"]), ("id", "<", "10")])

    assert sorted(ids(loader)) == [1, 2, 4, 5, 7, 8]


def test_an_invalid_partition_filter_is_refused(tmp_path: Path) -> None:
    """An argument that is no list of conditions raises FilterError. An unknown column raises ColumnNotFoundError."""
    path = write_news(tmp_path / "t")

    with pytest.raises(
        FilterError, match=r"partition_filter=\['x'\] was given; expected a list of \(column, operator, value\)"
    ):
        create_pytorch_dataloader(path, None, FIELDS, ["x"])
    with pytest.raises(ColumnNotFoundError, match="Column 'split' is not in the table"):
        create_pytorch_dataloader(path, None, FIELDS, [("split", "=", "train")])


def test_a_version_and_a_filter_go_together(tmp_path: Path) -> None:
    """A filter applies to an older version as well."""
    path = write_news(tmp_path / "t")
    deltalake.write_deltalake(path, pa.table({"id": pa.array([9000], pa.int32())}), mode="append", schema_mode="merge")
    loader = create_pytorch_dataloader(path, "id", FIELDS, [("filter_fld", "=", "false")], version=0)

    assert len(ids(loader)) == ROWS - len(range(0, ROWS, 3))
    assert 9000 not in ids(loader)


def test_a_later_commit_changes_nothing(tmp_path: Path) -> None:
    """A loader reads the version of the table that was the newest when the loader was made."""
    path = write_news(tmp_path / "t")
    loader = create_pytorch_dataloader(path, "id", FIELDS)
    deltalake.DeltaTable(path).delete("id < 100")

    assert sorted(ids(loader)) == list(range(ROWS))


def test_deleted_rows_are_gone(tmp_path: Path) -> None:
    """Deleted rows of a table with deletion vectors enabled do not come, and are not counted."""
    path = write_news(tmp_path / "t", configuration={"delta.enableDeletionVectors": "true"})
    deltalake.DeltaTable(path).delete("id % 2 = 0")
    loader = create_pytorch_dataloader(path, "id", FIELDS)

    assert sorted(ids(loader)) == list(range(1, ROWS, 2))
    assert len(loader.dataset) == len(range(1, ROWS, 2))


def test_statistics_are_not_needed(tmp_path: Path) -> None:
    """A loader over a table without statistics in its log has a length."""
    path = write_news(tmp_path / "t", configuration={"delta.dataSkippingNumIndexedCols": "0"})

    assert len(create_pytorch_dataloader(path, "id", FIELDS)) == 25


def test_shuffling_is_seeded_and_mixes_all_files(tmp_path: Path) -> None:
    """The order differs by epoch and by seed, repeats with the same seed, and mixes the rows of all files."""
    path = write_news(tmp_path / "t")
    loaders = [create_pytorch_dataloader(path, "id", FIELDS, shuffle=True, seed=seed) for seed in (1, 1, 2)]
    first, second = ids(loaders[0]), ids(loaders[0])
    head = first[:64]

    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first not in (second, sorted(first), ids(loaders[2]))
    assert first == ids(loaders[1])
    assert 0 < sum(one % 3 == 0 for one in head) < len(head)


def test_a_generator_gives_the_seed(tmp_path: Path) -> None:
    """The seed of `generator=` decides the order."""
    path = write_news(tmp_path / "t")
    orders = [
        ids(create_pytorch_dataloader(path, "id", FIELDS, shuffle=True, generator=torch.Generator().manual_seed(seed)))
        for seed in (5, 5, 6)
    ]

    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


@pytest.mark.parametrize("ranks", [2, 4, 5])
@pytest.mark.parametrize("drop", [False, True])
def test_ranks_get_equal_numbers_of_batches(tmp_path: Path, ranks: int, *, drop: bool) -> None:
    """All ranks take equally many steps. Together they read every row, or drop less than one global batch."""
    path = write_news(tmp_path / "t")
    parts = [
        create_pytorch_dataloader(path, "id", FIELDS, use_fixed_rank=True, rank=rank, num_ranks=ranks, drop_last=drop)
        for rank in range(ranks)
    ]
    found = [list(part) for part in parts]
    missing = set(range(ROWS)) - {one for batches in found for one in ids(batches)}

    assert {len(batches) for batches in found} == {len(parts[0])}
    assert len(parts[0]) == (ROWS // (32 * ranks) if drop else math.ceil(math.ceil(ROWS / ranks) / 32))
    assert len({tuple(len(batch["id"]) for batch in batches) for batches in found}) == 1
    assert {len(batch["id"]) for batches in found for batch in batches[:-1]} == {32}
    assert sum(len(batch["id"]) for batches in found for batch in batches) <= ROWS + ranks - 1
    assert len(missing) < (32 * ranks if drop else 1)


def test_incomplete_rank_arguments_are_refused(tmp_path: Path) -> None:
    """Rank arguments that are incomplete, or would be ignored, raise ArgumentError."""
    path = write_news(tmp_path / "t")

    with pytest.raises(ArgumentError, match=r"without use_fixed_rank=True, so that all rows would be read"):
        create_pytorch_dataloader(path, "id", FIELDS, rank=0, num_ranks=2)
    with pytest.raises(ArgumentError, match=r"use_fixed_rank=True was given with rank=None and num_ranks=2"):
        create_pytorch_dataloader(path, "id", FIELDS, use_fixed_rank=True, num_ranks=2)


def test_drop_last_drops_an_incomplete_batch(tmp_path: Path) -> None:
    """On one rank the last batch is smaller, or left out with `drop_last`."""
    path = write_news(tmp_path / "t")

    assert len(list(create_pytorch_dataloader(path, "id", FIELDS))[-1]["id"]) == ROWS % 32
    assert len(list(create_pytorch_dataloader(path, "id", FIELDS, drop_last=True))) == ROWS // 32


def test_integers_become_int64_and_floats_float64(tmp_path: Path) -> None:
    """Integers become int64 and floats become float64, as with DeltaTorch."""
    batch = next(iter(create_pytorch_dataloader(write_news(tmp_path / "t"))))

    assert (batch["id"].dtype, batch["score"].dtype, batch["filter_fld"].dtype) == (torch.int64, torch.float64, torch.bool)


def write_columns(path: Path, columns: dict[str, Any]) -> str:
    """Write a small table, and return its path."""
    deltalake.write_deltalake(str(path), pa.table(columns))
    return str(path)


def test_values_are_decoded_and_transformed(tmp_path: Path) -> None:
    """A FieldSpec decodes arrays of any shape and type, opens images, transforms Python values, and renames columns."""
    image = pytest.importorskip("PIL.Image")
    sink = io.BytesIO()
    image.fromarray(np.arange(16, dtype="uint8").reshape(4, 4)).save(sink, format="PNG")
    numbers = np.arange(6, dtype="<f4")
    path = write_columns(tmp_path / "t", {"a": [numbers.tobytes()] * 3, "p": [sink.getvalue()] * 3, "n": [1, 2, 3]})
    seen: list[type] = []

    def doubled(value: int) -> int:
        seen.append(type(value))
        return value * 2

    fields = [
        FieldSpec("a", decode_numpy_and_apply_shape=(3, 2, 1), dtype=np.float32, target_name="array"),
        FieldSpec("a", decode_numpy_and_apply_shape=[-1], target_name="octets"),
        FieldSpec("p", load_image_using_pil=True, transform=np.array, target_name="picture"),
        FieldSpec("n", transform=doubled),
    ]
    batch = next(iter(create_pytorch_dataloader(path, "n", fields)))

    assert list(batch) == ["array", "octets", "picture", "n"]
    assert torch.equal(batch["array"][1], torch.from_numpy(numbers.reshape(3, 2, 1)))
    assert (batch["octets"].shape, batch["octets"].dtype) == ((3, 24), torch.uint8)
    assert batch["picture"][2].flatten().tolist() == list(range(16))
    assert (batch["n"].tolist(), set(seen)) == ([2, 4, 6], {int})


def test_nulls_reach_transforms_or_raise(tmp_path: Path) -> None:
    """A transform gets None for a null, with or without decoding. A null without a transform raises DataError."""
    path = write_columns(tmp_path / "t", {"n": [1, None, 3], "b": [b"a", None, b"c"]})
    fields = [FieldSpec("n", transform=lambda value: -1 if value is None else value)]
    decoded = FieldSpec("b", decode_numpy_and_apply_shape=(1,), transform=lambda value: 0 if value is None else int(value[0]))

    assert next(iter(create_pytorch_dataloader(path, "n", [*fields, decoded])))["n"].tolist() == [1, -1, 3]
    assert next(iter(create_pytorch_dataloader(path, None, [decoded])))["b"].tolist() == [97, 0, 99]
    with pytest.raises(
        DataError,
        match=r"Column 'n' has a null; expected values only, because torch cannot batch None\. .* turns None into a value",
    ):
        next(iter(create_pytorch_dataloader(path, None, [FieldSpec("n")])))


def test_lists_become_tensors(tmp_path: Path) -> None:
    """Lists of one length are stacked into one tensor. Lists of different lengths stay separate."""
    path = write_columns(tmp_path / "t", {"same": [[1.0, 2.0]] * 2, "other": [[1], [2, 3]]})
    batch = next(iter(create_pytorch_dataloader(path)))

    assert batch["same"].tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert [one.tolist() for one in batch["other"]] == [[1], [2, 3]]


def test_two_fields_of_one_name_are_refused(tmp_path: Path) -> None:
    """Two fields with the same target name raise ArgumentError."""
    with pytest.raises(ArgumentError, match=r"Two fields are called 'id'; .* another target_name"):
        create_pytorch_dataloader(write_news(tmp_path / "t"), "id", [FieldSpec("id"), FieldSpec("score", target_name="id")])


def test_a_collate_function_gets_samples(tmp_path: Path) -> None:
    """`collate_fn` gets the samples of a batch, and the loader yields what it returns."""
    loader = create_pytorch_dataloader(
        write_news(tmp_path / "t"), "id", FIELDS, collate_fn=lambda rows: (len(rows), [row["text"] for row in rows])
    )
    found = list(loader)

    assert sum(count for count, _ in found) == ROWS
    assert found[0][1][0].startswith("news ")


@pytest.mark.parametrize(
    ("option", "value", "match"),
    [
        ("prefetch_factor", 4, "prefetch_factor=4 was given, and num_workers=2 is served by threads"),
        ("worker_init_fn", print, "worker_init_fn=.* Give multiprocessing_context='spawn' too"),
        ("timeout", 5, "timeout=5 was given"),
        ("in_order", False, "in_order=False was given"),
        ("sampler", [1], r"sampler=\[1\] was given, but rows are read and shuffled as they lie"),
        ("pin_memory_device", "cuda", "pin_memory_device='cuda' was given"),
        ("colate_fn", None, "create_pytorch_dataloader got colate_fn=None. Known are collate_fn,"),
        ("batch_size", 0, "batch_size=0 was given"),
        ("num_workers", -1, "num_workers=-1 was given"),
    ],
)
def test_arguments_without_effect_are_refused(tmp_path: Path, option: str, value: object, match: str) -> None:
    """An argument that cannot take effect, is unknown or has an invalid value raises ArgumentError."""
    path = write_news(tmp_path / "t")

    with pytest.raises(ArgumentError, match=match):
        create_pytorch_dataloader(path, "id", FIELDS, **{option: value})


def test_arguments_with_default_values_are_accepted(tmp_path: Path) -> None:
    """Arguments with torch's default values, and arguments that threads satisfy anyway, are accepted."""
    loader = create_pytorch_dataloader(
        write_news(tmp_path / "t"),
        "id",
        FIELDS,
        pin_memory=True,
        persistent_workers=True,
        timeout=0,
        sampler=None,
        prefetch_factor=None,
    )

    assert loader.pin_memory
    assert len(ids(loader)) == ROWS


def tripled(value: int) -> int:
    """Return three times a value. Worker processes can import this function."""
    return value * 3


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes_give_the_same_batches_as_threads(tmp_path: Path, context: str) -> None:
    """With `multiprocessing_context=`, worker processes of torch give the same batches in each epoch as threads."""
    path = write_news(tmp_path / "t")
    fields = [FieldSpec("id"), FieldSpec("id", transform=tripled, target_name="tripled")]
    threads = create_pytorch_dataloader(path, "id", fields, shuffle=True)
    processes = create_pytorch_dataloader(
        path, "id", fields, shuffle=True, multiprocessing_context=context, prefetch_factor=3, persistent_workers=True
    )
    epochs = [ids(processes), ids(processes)]

    assert epochs == [ids(threads), ids(threads)]
    assert (len(processes), len(processes.dataset), processes.num_workers, processes.batch_size) == (25, ROWS, 2, 32)


def test_a_loader_resumes_within_an_epoch(tmp_path: Path) -> None:
    """A state that is saved in the middle of an epoch resumes with the identical rest."""
    path = write_news(tmp_path / "t")
    whole = ids(create_pytorch_dataloader(path, "id", FIELDS, shuffle=True))
    first, second = (create_pytorch_dataloader(path, "id", FIELDS, shuffle=True) for _ in range(2))
    iterator = iter(first)
    seen = ids(next(iterator) for _ in range(4))
    second.load_state_dict(first.state_dict())

    assert seen + ids(second) == whole


def test_datasets_yield_samples(tmp_path: Path) -> None:
    """A dataset yields single rows. Its length is that of its rank, and `count()` that of the table."""
    path = write_news(tmp_path / "t")
    alone = IDBasedDeltaDataset(path, "id", [FieldSpec("id", transform=tripled)])
    third = IDBasedDeltaDataset(path, "id", FIELDS, use_fixed_rank=True, rank=2, num_ranks=4)

    assert isinstance(alone, deltatorch.DeltaIterableDataset)
    assert sorted(row["id"] for row in alone) == [3 * one for one in range(ROWS)]
    assert (len(alone), alone.rank, alone.num_ranks, alone.count()) == (ROWS, 0, 1, ROWS)
    assert len(third) == len(list(third)) == math.ceil(ROWS / 4)
    assert third.count() == ROWS


def test_a_dataset_works_in_a_dataloader(tmp_path: Path) -> None:
    """`DataLoader` over a dataset has the right length and every row. `set_epoch` changes the order."""
    dataset = IDBasedDeltaDataset(write_news(tmp_path / "t"), "id", FIELDS, shuffle=True)
    loader = DataLoader(dataset, batch_size=32)
    first = ids(loader)
    dataset.set_epoch(1)

    assert len(loader) == 25
    assert sorted(first) == list(range(ROWS))
    assert ids(loader) != first


def test_the_dataset_that_is_broken_in_deltatorch_works(tmp_path: Path) -> None:
    """`SkipReadDeltaDataset` uses its rank and its number of ranks."""
    dataset = skipping.SkipReadDeltaDataset(write_news(tmp_path / "t"), FIELDS, True, 1, 3)  # noqa: FBT003 - as its callers write

    assert (dataset.rank, dataset.num_ranks, len(list(dataset))) == (1, 3, math.ceil(ROWS / 3))


def test_lists_of_text_and_lists_of_lists_are_collated_as_python_lists(tmp_path: Path) -> None:
    """Lists of one length are collated item by item, as torch does. Lists of different lengths stay separate."""
    lists = {"t": [["a", "b"]] * 3, "n": [[[1, 2], [3, 4]]] * 3, "r": [["a"], ["b", "c"], []]}
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": range(3), **lists}))
    loader = create_pytorch_dataloader(str(tmp_path / "t"), "id", [FieldSpec(name) for name in lists], shuffle=False)

    (batch,) = loader

    assert batch["t"] == [("a",) * 3, ("b",) * 3]
    assert [[one.tolist() for one in pair] for pair in batch["n"]] == [[[1] * 3, [2] * 3], [[3] * 3, [4] * 3]]
    assert batch["r"] == lists["r"]


def test_values_that_torch_cannot_collate_raise(tmp_path: Path) -> None:
    """A value that torch cannot collate raises DataError, which names the column and suggests a transform."""
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": range(3), "d": pa.array([Decimal("1.5")] * 3)}))

    with pytest.raises(
        DataError,
        match=r"Column 'd' has Decimal; expected numbers, text, arrays or tensors, which torch can batch\. .*a transform",
    ):
        list(create_pytorch_dataloader(str(tmp_path / "t"), "id", [FieldSpec("d")]))


@pytest.mark.parametrize(
    ("cell", "options", "message"),
    [
        (
            b"12345",
            {"decode_numpy_and_apply_shape": (2, 2)},
            "holds 5 bytes; expected the bytes of an array of uint8 with shape .2, 2.:",
        ),
        (
            b"12345",
            {"decode_numpy_and_apply_shape": (5,), "dtype": np.float32},
            "holds 5 bytes; .* float32 with shape .5,.:",
        ),
        (b"", {"decode_numpy_and_apply_shape": (5,)}, "holds 0 bytes"),
        (7, {"decode_numpy_and_apply_shape": (5,)}, "holds 7; expected the bytes of an array"),
    ],
)
def test_values_that_are_no_such_array_raise(tmp_path: Path, cell: Any, options: Any, message: str) -> None:
    """A value that is no array of the requested shape and type raises DataError, which names the column."""
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": range(3), "x": [cell] * 3}))

    with pytest.raises(DataError, match=rf"Column 'x' {message}.*Give its FieldSpec the shape and dtype that were stored"):
        list(create_pytorch_dataloader(str(tmp_path / "t"), "id", [FieldSpec("x", **options)]))


@pytest.mark.parametrize("cell", [b"no image", 7])
def test_values_that_are_no_image_raise(tmp_path: Path, cell: Any) -> None:
    """A value that Pillow cannot open raises DataError, which names the column."""
    pytest.importorskip("PIL")
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": range(3), "x": [cell] * 3}))

    with pytest.raises(
        DataError, match=rf"Column 'x' holds {cell!r}; expected an image file that Pillow can open: .* Leave load_image_using"
    ):
        list(create_pytorch_dataloader(str(tmp_path / "t"), "id", [FieldSpec("x", load_image_using_pil=True)]))


def test_arrays_of_a_foreign_byte_order_are_converted(tmp_path: Path) -> None:
    """Arrays of a foreign byte order are converted, because torch supports only that of the machine."""
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": range(2), "x": [np.array([1, 2], ">i4").tobytes()] * 2}))
    field = FieldSpec("x", decode_numpy_and_apply_shape=(2,), dtype=">i4")

    (batch,) = create_pytorch_dataloader(str(tmp_path / "t"), "id", [field])

    assert batch["x"].tolist() == [[1, 2], [1, 2]]
