"""The torch loader in one process: torch's class, the engine's order, and tensors that belong to the consumer."""

from __future__ import annotations

import copy
import datetime as dt
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import Case, cases, rows

import penstock as ps
from penstock._engine.plan.table import check_rows
from penstock._engine.window.prefetch import RETENTION_CHECK_BATCH
from penstock.errors import ArgumentError, DataError, EmptyDatasetError, MapError, StateError, UnknownArgumentError
from penstock.policies import AsObjects
from penstock.testing import MemoryFormat, example

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

LASTS = st.sampled_from(["drop", "pad", "wrap", "uneven"])


def listed(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of tensors, or of arrays, as lists."""
    return {name: values.tolist() if hasattr(values, "tolist") else values for name, values in batch.items()}


def lists(batches: Any) -> list[dict[str, Any]]:
    """Return batches as lists."""
    return [listed(batch) for batch in batches]


def ids(batches: Any) -> list[list[int]]:
    """Return the ids of each batch."""
    return [batch["id"].tolist() for batch in batches]


def one(column: pa.Array | list[Any], name: str = "x") -> ps.Dataset:
    """Return a table of one column and an id, in row groups of three."""
    table = pa.table({"id": pa.array(range(len(column))), name: column})
    return MemoryFormat.of(table, row_group_rows=3).open()


def stored(folder: Path, count: int = 120, group: int = 10) -> ps.Dataset:
    """Return a dataset of two Parquet files."""
    for at in range(2):
        part = rows(range(at * count // 2, (at + 1) * count // 2))
        pq.write_table(part, folder / f"{at}.parquet", row_group_size=group)
    return ps.open(folder)


def threads() -> list[str]:
    """Return the names of Penstock's threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]


def test_a_loader_is_a_dataloader_of_torch() -> None:
    """A loader is a `DataLoader` of torch, and its dataset is an `IterableDataset` of torch."""
    loader = ps.torch.loader(example().batch(4))

    assert isinstance(loader, torch.utils.data.DataLoader)
    assert isinstance(loader, ps.torch.Loader)
    assert isinstance(loader.dataset, torch.utils.data.IterableDataset)
    assert (loader.num_workers, loader.drop_last, loader.batch_sampler) == (0, False, None)
    assert isinstance(loader.sampler, torch.utils.data.Sampler)
    assert next(iter(loader.sampler)) is None


@pytest.mark.parametrize(
    ("ds", "batches", "size"),
    [
        (example().batch(4), 3, 4),
        (example().batch(4, last="drop"), 2, 4),
        (example().shuffle().batch(3), 3, 3),
        (example().batch("row_group"), 3, None),
        (example(), 10, None),
        (example().batch(4).repeat(2), 6, 4),
    ],
)
def test_length_and_batch_size_are_exact(ds: ps.Dataset, batches: int, size: int | None) -> None:
    """`len` is the number of items that come. `batch_size` is the number of rows in a batch, or None."""
    loader = ps.torch.loader(ds)

    assert (len(loader), loader.batch_size, vars(loader)["batch_size"]) == (batches, size, size)  # wrappers copy attributes
    assert len(list(loader)) == batches


def test_the_length_is_that_of_the_rest_after_a_resume() -> None:
    """After a resume, `len` counts the batches that are left in the epoch. The next epoch has its full length."""
    loader = ps.torch.loader(example().batch(2))
    loader.load_state_dict(loader.state_at(2))

    assert len(loader) == 3
    assert ids(loader) == [[4, 5], [6, 7], [8, 9]]
    assert len(loader) == 5


@given(cases(), st.integers(1, 5), LASTS, st.integers(0, 2))
def test_a_loader_gives_what_plain_iteration_gives(case: Case, size: int, last: Any, epoch: int) -> None:
    """The values and order of every epoch are those of the NumPy loader."""
    assume(case.ids)
    size = min(size, len(case.ids)) if last == "drop" else size
    plain, loader = (make(case.dataset().batch(size, last=last)) for make in (ps.loader, ps.torch.loader))
    plain.set_epoch(epoch)
    loader.set_epoch(epoch)

    for _ in range(2):
        assert lists(loader) == lists(plain)


@pytest.mark.parametrize("size", [1, 3, 700])
def test_a_window_is_cut_into_many_batches_correctly(tmp_path: Path, size: int) -> None:
    """A window that is cut into many batches gives the same numbers and objects as the NumPy loader."""
    pq.write_table(pa.table({"id": range(3_000), "half": np.arange(3_000, dtype=np.float32) / 2}), tmp_path / "t.parquet")
    ds = ps.open(tmp_path).shuffle(seed=1).with_row_ids().batch(size, last="uneven")

    loader = ps.torch.loader(ds)
    assert lists(loader) == lists(ps.loader(ds))
    assert all(batch["half"].is_contiguous() for batch in loader)


@pytest.mark.parametrize(
    ("column", "dtype", "expected"),
    [
        *((pa.array([1, 2], kind), str(kind), [1, 2]) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        *((pa.array([1, 2], kind), str(kind), [1, 2]) for kind in (pa.uint8(), pa.uint16(), pa.uint32())),
        (pa.array([1, 2**64 - 1], pa.uint64()), "uint64", [1, 2**64 - 1]),
        (pa.array(np.array([1.5, 2], np.float16)), "float16", [1.5, 2.0]),
        (pa.array([1.5, 2], pa.float32()), "float32", [1.5, 2.0]),
        (pa.array([1.5, 2], pa.float64()), "float64", [1.5, 2.0]),
        (pa.array([True, False]), "bool", [True, False]),
        (pa.array([dt.date(1970, 1, 3), dt.date(1970, 1, 1)]), "int64", [2, 0]),
        (pa.array([5, 6], pa.timestamp("us")), "int64", [5, 6]),
        (pa.array([5, 6], pa.duration("ns")), "int64", [5, 6]),
        (pa.array([5, 6], pa.time32("s")), "int64", [5, 6]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)), "int16", [[1, 2], [3, 4]]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
@pytest.mark.parametrize("shuffled", [False, True])
def test_numbers_become_tensors_of_their_type(column: pa.Array, dtype: str, expected: list[Any], shuffled: bool) -> None:  # noqa: FBT001 - pytest gives it by name
    """No type is widened or narrowed. Dates, times and durations become integers in their unit."""
    ds = one(column)
    batch = next(iter(ps.torch.loader((ds.shuffle(seed=1) if shuffled else ds).batch(2))))

    assert batch["x"].dtype == getattr(torch, dtype)
    assert [value for _, value in sorted(zip(batch["id"].tolist(), batch["x"].tolist(), strict=True))] == expected


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["a", None], ["a", None]),
        ([b"a", b""], [b"a", b""]),
        ([Decimal("1.50"), None], [Decimal("1.50"), None]),
        (pa.nulls(2), [None, None]),
        ([{"a": 1}, None], [{"a": 1}, None]),
    ],
)
def test_text_and_objects_become_lists(column: Any, expected: list[Any]) -> None:
    """Values that torch has no type for become a list of Python objects."""
    batch = next(iter(ps.torch.loader(one(column).batch(2))))

    assert batch["x"] == expected


def test_a_row_has_tensors_without_dimensions() -> None:
    """A dataset without batches yields rows: numbers are tensors without dimensions, and text stays text."""
    row = next(iter(ps.torch.loader(example())))

    assert (row["id"].shape, row["id"].dtype, row["x"].item(), row["label"]) == (torch.Size([]), torch.int64, 0.0, "even")


def test_rows_may_have_lists_of_different_lengths() -> None:
    """Without batches, lists of different lengths become one tensor per row."""
    found = list(ps.torch.loader(one([[1], [2, 3], []])))

    assert [row["x"].tolist() for row in found] == [[1], [2, 3], []]


def test_what_a_map_returns_becomes_tensors() -> None:
    """Arrays with negative strides, read-only memory or a foreign byte order are copied into tensors."""

    def changed(batch: Mapping[str, Any]) -> dict[str, Any]:
        numbers = batch["id"]
        return {
            "backwards": numbers[::-1],
            "broadcast": np.broadcast_to(np.int16(7), (len(numbers), 2)),
            "foreign": numbers.astype(">i4"),
            "moments": np.array(["1970-01-02"] * len(numbers), ">M8[D]"),
            "text": np.array(["a"] * len(numbers)),
        }

    batch = next(iter(ps.torch.loader(example().batch(2).map(changed))))
    batch["broadcast"][0, 0] = 1

    assert listed(batch) == {
        "backwards": [1, 0],
        "broadcast": [[1, 7], [7, 7]],
        "foreign": [0, 1],
        "moments": [1, 1],
        "text": ["a", "a"],
    }


def test_a_type_that_torch_lacks_raises_an_error_with_remedies() -> None:
    """A type without a counterpart in torch raises ArgumentError, which names the column and the remedies."""
    ds = example().batch(2).map(lambda batch: {"wide": batch["x"].astype(np.longdouble)})

    with pytest.raises(ArgumentError) as caught:
        next(iter(ps.torch.loader(ds)))
    assert str(caught.value) == (
        f"Column 'wide' is {np.dtype(np.longdouble)}, and torch has no such tensors; expected numbers, booleans, dates or "
        "times. Leave it out with .select(...), or convert it in a .map()."
    )


RAGGED = [[1], [2, 3], [], [4, 5, 6]]


def test_lists_of_different_lengths_raise_an_error_that_names_the_options() -> None:
    """A batch with lists of different lengths raises ArgumentError, which names the policies to choose from."""
    with pytest.raises(ArgumentError) as caught:
        next(iter(ps.torch.loader(one(RAGGED).batch(4))))
    assert str(caught.value) == (
        "Column 'x' holds arrays that may differ in shape; expected arrays of one shape, as a tensor needs. Write "
        ".ragged(penstock.Pad(), 'x'), or .ragged(penstock.Offsets(), 'x') and jagged=['x'] for a nested tensor, or "
        ".ragged(penstock.Resize(height, width), 'x') for images."
    )


def test_the_error_for_a_ragged_column_of_a_map_advises_to_change_the_map() -> None:
    """`.ragged` acts before maps, so for a ragged column that a map makes the error advises to change the map."""

    def made(batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": batch["x"]}

    ds = one(RAGGED).select("x")
    for asked in (ds.batch(4).map(made), ps.mix([(ds, 1)]).batch(4).map(made)):
        with pytest.raises(ArgumentError, match=r"if a map makes the column, let it return arrays of one shape\.$"):
            next(iter(ps.torch.loader(asked)))
    of_source = ps.mix([(ds.map(lambda row: {"y": row["x"]}), 1)]).batch(4)
    # `.ragged` of a mixture acts after the maps of its sources.
    with pytest.raises(ArgumentError, match=r"'y'\) for images\.$"):
        next(iter(ps.torch.loader(of_source)))

    assert next(iter(ps.torch.loader(of_source.ragged(ps.Pad(), "y"))))["y"].shape == (4, 3)


def test_ragged_lists_inside_fixed_lists_raise_too() -> None:
    """Lists of different lengths inside lists of fixed length raise the same error."""
    column = pa.array([[[1], [2, 3]]] * 3, pa.list_(pa.list_(pa.int64()), 2))

    with pytest.raises(ArgumentError, match=r"\.ragged\(penstock\.Pad\(\), 'x'\)"):
        next(iter(ps.torch.loader(one(column).batch(2))))


def test_lists_are_filled_up_on_request() -> None:
    """`Pad` gives one tensor of values and one of lengths."""
    batch = next(iter(ps.torch.loader(one(RAGGED).batch(4).ragged(ps.Pad(-1), "x"))))

    assert batch["x"].tolist() == [[1, -1, -1], [2, 3, -1], [-1, -1, -1], [4, 5, 6]]
    assert batch["x_length"].tolist() == [1, 2, 0, 3]


def test_lists_are_nested_tensors_on_request() -> None:
    """`Offsets` with `jagged=` gives one nested tensor of jagged layout, without a tensor of offsets."""
    ds = one(RAGGED).batch(4).ragged(ps.Offsets(), "x")
    flat = next(iter(ps.torch.loader(ds)))
    batch = next(iter(ps.torch.loader(ds, jagged=["x"])))

    assert listed(flat) == {"id": [0, 1, 2, 3], "x": [1, 2, 3, 4, 5, 6], "x_offsets": [0, 1, 3, 3, 6]}
    assert sorted(batch) == ["id", "x"]
    assert (batch["x"].is_nested, batch["x"].layout) == (True, torch.jagged)
    assert [part.tolist() for part in batch["x"].unbind()] == RAGGED


@pytest.mark.parametrize(
    ("jagged", "complaint"),
    [
        ("x", "Got jagged='x'; expected a list of columns. Write jagged=['x']."),
        (
            ["x"],
            "Column 'x' is in jagged=, and has no offsets; expected a column with Offsets(). Write "
            ".ragged(penstock.Offsets(), 'x'). Columns: id, x, x_length.",
        ),
    ],
)
def test_jagged_needs_a_list_of_columns_with_offsets(jagged: Any, complaint: str) -> None:
    """A `jagged=` that is no list, or names a column without offsets, raises ArgumentError."""
    with pytest.raises(ArgumentError) as caught:
        next(iter(ps.torch.loader(one(RAGGED).batch(4).ragged(ps.Pad(), "x"), jagged=jagged)))
    assert str(caught.value) == complaint


@pytest.mark.parametrize("policy", [AsObjects(), ps.Offsets()])
def test_the_error_for_lists_inside_lists_advises_to_pad(policy: Any) -> None:
    """Only `Pad` makes a tensor of lists inside lists, so the error advises nothing else."""
    lists = (
        one([[["a"]], [["b"], ["c", "d"]]] if isinstance(policy, AsObjects) else [[[1]], [[2], [3, 4]]]).select("x").batch(2)
    )

    with pytest.raises(ArgumentError) as caught:
        next(iter(ps.torch.loader(lists.ragged(policy, "x"))))
    assert str(caught.value) == (
        "Column 'x' holds arrays that may differ in shape; expected arrays of one shape, as a tensor needs. Write "
        ".ragged(penstock.Pad(), 'x')."
    )


def test_lists_inside_lists_cannot_be_a_jagged_tensor() -> None:
    """Lists inside lists in `jagged=` raise ArgumentError, which advises to leave the column out of it."""
    ds = one([[[1]], [[2], [3, 4]]]).select("x").ragged(ps.Offsets(), "x").batch(2)

    with pytest.raises(ArgumentError, match=r"Column 'x' is in jagged=, .* Leave it out of jagged=, or make one"):
        next(iter(ps.torch.loader(ds, jagged=["x"])))


@pytest.mark.parametrize("step", [1.5, None, "a", True])
def test_a_step_is_a_whole_number(step: Any) -> None:
    """A step that is not a non-negative integer raises ArgumentError, which shows its value."""
    loader = ps.torch.loader(one([1, 2, 3]).batch(1))

    with pytest.raises(ArgumentError, match=r"state_at\(\) got step=.*; expected a non-negative integer"):
        loader.state_at(step)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (ps.Fill(-1), {"x": [1, -1]}),
        (ps.Mask(), {"x": [1, 0], "x_valid": [True, False]}),
    ],
)
def test_nulls_follow_the_policy_of_their_column(policy: Any, expected: dict[str, Any]) -> None:
    """`Fill` replaces nulls. `Mask` adds a tensor that tells which values are valid."""
    batch = next(iter(ps.torch.loader(one([1, None]).select("x").batch(2).nulls(policy, "x"))))

    assert listed(batch) == expected


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, None], pa.timestamp("us")),
        pa.array([0, None], pa.date32()),
        pa.array([0, None], pa.time64("us")),
        pa.array([0, None], pa.duration("s")),
        pa.array([[0], [None]], pa.list_(pa.timestamp("us"), 1)),
    ],
    ids=str,
)
def test_null_times_raise_without_a_policy(column: pa.Array) -> None:
    """Times become integers, so a null time raises DataError, unless `Mask` or `on_bad_row` handles it."""
    ds = one(column)
    with pytest.raises(ps.errors.DataError, match=r"row 1, column 'x': .* null, and a whole number"):
        list(ps.torch.loader(ds.batch(2)))
    with pytest.raises(ps.errors.DataError, match="Column 'x' has a null, and times become integers"):
        list(ps.torch.loader(ds.batch(2).map(dict)))
    masked = next(iter(ps.torch.loader(ds.nulls(ps.Mask(), "x").batch(2))))

    assert masked["x_valid"].flatten().tolist() == [True, False]
    assert masked["x"].flatten()[0] == 0
    assert [batch["id"].tolist() for batch in ps.torch.loader(ds.on_bad_row("skip").batch(2, last="uneven"))] == [[0]]


def test_nulls_without_a_policy_raise_an_error_that_names_one() -> None:
    """A null in a column of integers raises DataError, which suggests `.nulls(penstock.Fill(value))`."""
    with pytest.raises(ps.errors.DataError, match=r"\.nulls\(penstock\.Fill\(value\), 'x'\)"):
        next(iter(ps.torch.loader(one([1, None]).batch(2))))


def pictures(folder: Path) -> ps.Dataset:
    """Return a dataset with a column of arrays and a column of images."""
    from penstock.write import write

    fields = [ps.Field("id", np.int64), ps.Field("cell", np.float32, (2, 3), ps.codecs.Npy())]
    schema = ps.Schema("Pictures", [*fields, ps.Field("image", np.uint8, (8, 6, 3), ps.codecs.Png())])
    with write(folder / "pictures", schema, row_group_rows=7) as table:
        for at in range(30):
            image = np.full((8, 6, 3), at, np.uint8)
            table.append({"id": at, "cell": np.full((2, 3), at, np.float32), "image": image})
    return ps.open(folder / "pictures")


def test_cells_that_are_arrays_become_dense_tensors(tmp_path: Path) -> None:
    """The arrays or images of a batch are one tensor, whose first dimension is the row."""
    pytest.importorskip("cv2")
    found = list(ps.torch.loader(pictures(tmp_path).shuffle(seed=3).batch(5)))

    assert {(batch["cell"].shape, batch["image"].shape) for batch in found} == {((5, 2, 3), (5, 8, 6, 3))}
    assert {(batch["cell"].dtype, batch["image"].dtype) for batch in found} == {(torch.float32, torch.uint8)}
    for batch in found:
        assert batch["image"][:, 7, 5, 2].tolist() == batch["cell"][:, 1, 2].tolist() == batch["id"].tolist()


def overwrite(batch: dict[str, Any]) -> None:
    """Overwrite all tensors of a batch."""
    for values in batch.values():
        if isinstance(values, torch.Tensor):
            values.fill_(1) if values.dtype == torch.bool else values.sub_(values).sub_(9)


def assert_independent(ds: ps.Dataset) -> None:
    """Check over three epochs that batches can be kept and overwritten without an effect on each other."""
    plain, loader = ps.loader(ds), ps.torch.loader(ds)
    expected = [lists(plain) for _ in range(3)]
    kept: list[dict[str, Any]] = []
    for epoch in expected:
        for number, (batch, values) in enumerate(zip(loader, epoch, strict=True)):
            assert listed(batch) == values
            if number % 3 == 2:
                continue  # not kept, so that its memory can be reused
            if number % 3 == 1:
                overwrite(batch)
            kept.append({"batch": batch, "values": listed(batch)})
    gc.collect()
    assert all(listed(entry["batch"]) == entry["values"] for entry in kept)


@pytest.mark.slow
@settings(max_examples=15)
@given(cases(), st.integers(1, 5), LASTS)
def test_tensors_belong_to_the_consumer(case: Case, size: int, last: Any) -> None:
    """In any order, batches are writable, and the loader never reuses memory that the consumer still holds."""
    assume(case.ids)
    assert_independent(case.dataset().batch(min(size, len(case.ids)) if last == "drop" else size, last=last))


@pytest.mark.parametrize(
    "query",
    [
        lambda ds: ds.batch("row_group"),
        lambda ds: ds.shuffle(ps.RowGroupShuffle()).batch("row_group"),
        lambda ds: ds.batch(7),
        lambda ds: ds.shuffle(ps.WindowShuffle(rows=40), seed=2).batch(7),
        lambda ds: ds.shuffle(ps.WindowShuffle(rows=40), seed=2).stack("both", ["id", "triple"]).batch(7),
        lambda ds: ds.shuffle(ps.WindowShuffle(rows=40), seed=2).shard(0, 1, lanes=3).batch(6),
        lambda ds: ds.where(ps.col("third") != 1, lazy=True).batch(7),
        lambda ds: ds.batch(7).map(lambda batch: batch),
        lambda ds: ds.limit(40),
    ],
)
def test_tensors_of_parquet_files_belong_to_the_consumer(tmp_path: Path, query: Callable[[ps.Dataset], ps.Dataset]) -> None:
    """Batches of Parquet files are writable and independent, however they are read."""
    assert_independent(query(stored(tmp_path)))


def test_tensors_of_decoded_cells_belong_to_the_consumer(tmp_path: Path) -> None:
    """Images are decoded into memory that is reused only after the consumer has released it."""
    pytest.importorskip("cv2")
    assert_independent(pictures(tmp_path).shuffle(seed=1).batch(4))


def test_writing_to_a_batch_does_not_spoil_the_gradients_of_another(tmp_path: Path) -> None:
    """Batches of one window share memory, but autograd treats them as independent tensors."""
    batches = iter(ps.torch.loader(stored(tmp_path).select("triple").shuffle(seed=1).batch(5)))
    for _ in range(RETENTION_CHECK_BATCH):  # they are made one by one
        next(batches)
    first, second = next(batches)["triple"], next(batches)["triple"]
    weight = torch.ones(5, dtype=torch.float64, requires_grad=True)
    loss = (weight * first).sum()
    second.add_(1)
    loss.backward()

    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert weight.grad.tolist() == first.tolist()


@pytest.mark.parametrize("copied", [cloudpickle.dumps, copy.copy, copy.deepcopy])
def test_an_iterator_cannot_be_copied_or_pickled(copied: Callable[[Any], Any]) -> None:
    """Copying or pickling an iterator raises ArgumentError, and the iterator goes on."""
    batches = iter(ps.torch.loader(example().batch(4)))

    with pytest.raises(ArgumentError, match="Give the loader, or the dataset, and begin one there"):
        copied(batches)

    assert ids(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_tensors_of_future_batches_take_no_memory() -> None:
    """Tensors exist for a few batches only, however many columns and batches a window has."""
    columns, count = 600, 50
    ds = MemoryFormat.of({f"c{at}": range(at, at + count) for at in range(columns)}, row_group_rows=count).open()
    batches = iter(ps.torch.loader(ds.shuffle(seed=1).batch(1)))
    early, first = next(batches), next(batches)

    alive = sum(type(found) is torch.Tensor for found in gc.get_objects())

    assert alive < count // 2 * columns
    assert [int(value) - at for at, value in enumerate(first.values())] == [int(first["c0"])] * columns
    assert sorted([int(early["c0"]), int(first["c0"]), *(int(batch["c0"]) for batch in batches)]) == list(range(count))


@settings(max_examples=15)
@given(cases(), st.integers(1, 4), st.integers(1, 5), LASTS, st.data())
def test_a_resume_after_any_step_gives_the_identical_rest(
    case: Case, ranks: int, size: int, last: Any, data: st.DataObject
) -> None:
    """A state that went through JSON resumes with the identical rest. `state_at` returns the same state."""
    assume(case.ids)
    ranks = min(ranks, len(case.ids))
    size = min(size, len(case.ids) // ranks) if last == "drop" else size
    rank = data.draw(st.integers(0, ranks - 1))

    def made() -> Any:
        return ps.torch.loader(case.dataset().batch(size, last=last), rank=rank, world_size=ranks)

    loader, found, states = made(), [], []
    for _ in range(2):
        for steps, batch in enumerate(loader, start=1):
            found.append(listed(batch))
            states.append(json.dumps(loader.state_dict()))
            assert loader.state_at(steps) == loader.state_dict()

    for step, state in enumerate(states, start=1):
        again = made()
        again.load_state_dict(json.loads(state))
        rest = lists(again) + (lists(again) if step < len(states) // 2 else [])
        assert rest == found[step:] or (step == len(states) and again.state_dict()["epoch"] == 3)


def test_each_iteration_is_the_next_epoch_also_after_a_break() -> None:
    """A break ends an epoch, so the next iteration reads the next epoch. `set_epoch` selects another one."""
    ds = example().shuffle(seed=1).batch(2)
    expected = []
    for epoch in range(4):
        plain = ps.loader(ds)
        plain.set_epoch(epoch)
        expected.append(ids(plain))
    loader = ps.torch.loader(ds)

    assert ids(loader) == expected[0]
    for _ in loader:
        break
    assert loader.state_dict()["epoch"] == 1
    assert ids(loader) == expected[2]
    loader.set_epoch(1)
    assert ids(loader) == expected[1]
    assert loader.state_dict()["epoch"] == 2


def test_a_state_of_another_query_is_refused() -> None:
    """Loading the state of a dataset with another seed raises StateError."""
    state = ps.torch.loader(example().shuffle(seed=1).batch(2)).state_dict()

    with pytest.raises(StateError, match="seed 1, but this dataset has seed 2"):
        ps.torch.loader(example().shuffle(seed=2).batch(2)).load_state_dict(state)


@pytest.mark.parametrize("epoch", [-1, "1", True, 1.0])
def test_an_epoch_is_a_number_from_0(epoch: Any) -> None:
    """An epoch that is not a non-negative integer raises ArgumentError, which shows its value."""
    with pytest.raises(ArgumentError, match=rf"set_epoch\(\) got {epoch!r}"):
        ps.torch.loader(example().batch(2)).set_epoch(epoch)


def test_ranks_are_those_of_the_arguments() -> None:
    """`rank` and `world_size` select the part that is read. The parts of all ranks together have every row."""
    parts = [ids(ps.torch.loader(example().batch(2, last="uneven"), rank=rank, world_size=3)) for rank in range(3)]

    assert sorted(number for part in parts for batch in part for number in batch) == list(range(10))
    assert parts[1] == ids(example().shard(1, 3).batch(2, last="uneven"))


def test_ranks_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process group, RANK and WORLD_SIZE of the environment apply. Arguments override them."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    ds = example().batch(2, last="uneven")

    assert ids(ps.torch.loader(ds)) == ids(ds.shard(2, 3))
    assert ids(ps.torch.loader(ds, rank=0, world_size=1)) == ids(ds)
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(ArgumentError, match=r"The environment says RANK='two'; expected a number"):
        ps.torch.loader(ds)


def test_lanes_that_are_set_before_the_ranks_are_known_stay() -> None:
    """`.shard(0, 1, lanes=4)` sets the number of lanes, and the arguments of the loader set the rank."""
    ds = example().shard(0, 1, lanes=4).batch(2)

    assert ps.torch.loader(ds, rank=1, world_size=2).state_dict()["deals"] == [[4, 1, 2, 0]]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"rank": 1}, "loader() got rank=1 and world_size=None; expected both, or neither."),
        ({"world_size": 1}, "loader() got rank=None and world_size=1; expected both, or neither."),
        ({"rank": 3, "world_size": 2}, "shard() got rank=3 with world_size=2; expected an integer from 0 to 1."),
        ({"process_group": "all"}, "loader() got process_group='all', and torch.distributed is not initialised."),
    ],
)
def test_invalid_ranks_are_refused(options: dict[str, Any], complaint: str) -> None:
    """Invalid ranks and process groups raise ArgumentError, which names the arguments."""
    with pytest.raises(ArgumentError) as caught:
        ps.torch.loader(example().batch(2), **options)
    assert str(caught.value).startswith(complaint)


def test_a_shard_of_another_rank_is_refused() -> None:
    """A loader for one rank raises ArgumentError if the dataset is sharded for another rank."""
    ds = example().shard(0, 2).batch(2)

    assert ids(ps.torch.loader(ds, rank=0, world_size=2)) == ids(ds)
    assert ids(ps.torch.loader(ds)) == ids(ds)
    with pytest.raises(ArgumentError) as caught:
        ps.torch.loader(ds, rank=1, world_size=2)
    assert str(caught.value) == (
        "The dataset is rank 0 of 2 by .shard(), and this process is rank 1 of 2; expected equal ranks. Leave "
        ".shard() out, or give the loader rank= and world_size=."
    )


@pytest.mark.parametrize("make", [ps.torch.loader, ps.torch.IterableDataset, ps.torch.MapDataset])
def test_only_datasets_are_accepted(make: Callable[[Any], Any]) -> None:
    """Anything but a dataset raises ArgumentError, which names its type."""
    with pytest.raises(ArgumentError, match=r"list.*expected a (penstock )?dataset"):
        make([1, 2])


def test_tensors_are_moved_to_a_device() -> None:
    """`device=` moves tensors, and leaves lists as they are. Here `meta` stands for a device other than the CPU."""
    batch = next(iter(ps.torch.loader(example().batch(4), device="meta")))

    assert (batch["id"].device.type, batch["id"].shape, batch["label"]) == ("meta", (4,), ["even", "odd", "even", "odd"])


def test_states_are_right_while_tensors_are_moved() -> None:
    """With `device=` no batch is fetched ahead, so the state is that after the last batch that came."""
    loader = ps.torch.loader(example().batch(4), device="cpu")
    batches = iter(loader)
    next(batches)

    assert loader.state_dict() == loader.state_at(1)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", 1.5, "cuda:99", "mps:99"])
def test_an_unavailable_device_is_refused(device: Any) -> None:
    """A device that torch or the machine lacks raises ArgumentError with torch's message, before anything is read."""
    with pytest.raises(ArgumentError, match=r"(?s)loader\(\) got device=.*; expected a device of torch.* Torch reports: "):
        ps.torch.loader(example().batch(4), device=device)


def test_an_error_is_raised_again_with_a_device() -> None:
    """With `device=`, a second `next()` after an error raises the error again, and does not end the epoch."""
    batches = iter(ps.torch.loader(one([1, None, 3]).batch(1), device="cpu"))

    for _ in range(2):
        with pytest.raises(DataError, match="the value is null"):
            next(batches)


def test_threads_share_an_iterator_with_a_device(tmp_path: Path) -> None:
    """With `device=`, threads may share one iterator. Each batch goes to one of them."""
    batches = iter(ps.torch.loader(stored(tmp_path).select("id").batch(1), device="cpu"))

    with ThreadPoolExecutor(4) as pool:
        found = [number for part in pool.map(lambda _: ids(batches), range(4)) for (number,) in part]
    assert sorted(found) == list(range(120))


def test_threads_that_begin_at_the_same_time_read_different_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that call `iter` at the same time get different epochs."""
    ds = example().select("id").shuffle(seed=4).batch(5)
    loader, plain, count = ps.torch.loader(ds), ps.loader(ds), 4
    barrier = threading.Barrier(count)

    def check_late(*asked: Any) -> None:
        with suppress(threading.BrokenBarrierError):
            barrier.wait(timeout=0.2)  # a loader may let threads in one by one
        check_rows(*asked)

    monkeypatch.setattr("penstock._engine.deliver.loader.check_rows", check_late)
    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(lambda _: ids(loader), range(count)))
    assert sorted(found) == sorted(ids(plain) for _ in range(count))


def test_pinning_without_an_accelerator_does_nothing() -> None:
    """`pin_memory=True` has no effect on a machine without an accelerator."""
    if torch.accelerator.is_available():
        pytest.skip("This machine has an accelerator.")
    batch = next(iter(ps.torch.loader(example().batch(4), pin_memory=True)))

    assert batch["id"].tolist() == [0, 1, 2, 3]


def noisy(batch: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return the ids of a batch, and a column of random numbers."""
    return {"id": batch["id"], "noise": rng.random(np.shape(batch["id"]))}


@pytest.mark.parametrize("size", [None, 3])
def test_maps_give_the_same_values_as_without_torch(size: int | None) -> None:
    """A map gives the same values as in the NumPy loader, random numbers included."""
    ds = example().shuffle(seed=1).map(noisy)
    ds = ds if size is None else ds.batch(size)

    assert lists(ps.torch.loader(ds)) == lists(ps.loader(ds))


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("kind", ["bfloat16", "grad"])
def test_tensors_that_numpy_cannot_convert_raise(kind: str, *, per_row: bool) -> None:
    """A map that returns a tensor that NumPy cannot convert raises MapError, which names the column."""

    def made(batch: dict[str, Any]) -> dict[str, Any]:
        found = torch.as_tensor(batch["x"])
        return {"x": found, "y": found.to(torch.bfloat16) if kind == "bfloat16" else found.clone().requires_grad_()}

    with pytest.raises(MapError, match=r"returned Tensor for column 'y', which NumPy cannot convert: .*Return an array"):
        next(iter(ps.torch.loader(example().select("x").batch(4).map(made, per_row=per_row))))


def test_a_map_that_returns_another_length_raises() -> None:
    """A map of batches that returns columns of another length raises MapError."""
    with pytest.raises(MapError, match="got 4 rows and returned columns of other lengths"):
        next(iter(ps.torch.loader(example().batch(4).map(lambda batch: {"id": batch["id"][:1]}))))


def test_a_dataset_repeats() -> None:
    """`repeat(2)` makes one iteration of two epochs, and the next iteration begins with the third epoch."""
    ds = example().select("id").shuffle(seed=1).batch(5)
    twice, plain = ps.torch.loader(ds.repeat(2)), ps.loader(ds)

    assert ids(twice) == ids(plain) + ids(plain)
    assert ids(twice) == ids(plain) + ids(plain)
    with pytest.raises(TypeError, match="repeats without end has no length"):
        len(ps.torch.loader(ds.repeat()))


def test_a_lazy_filter_has_no_length_and_a_state() -> None:
    """A loader with a lazy filter has no length, and resumes after the last row that came."""
    ds = example().select("id").where(ps.col("label") == "odd", lazy=True).batch(2)
    loader = ps.torch.loader(ds)
    first = next(iter(loader))["id"].tolist()
    again = ps.torch.loader(ds)
    again.load_state_dict(loader.state_dict())

    assert [first, *ids(again)] == [[1, 3], [5, 7], [9]]
    with pytest.raises(TypeError, match="lazy filter has no length"):
        len(loader)


def test_too_few_rows_raise_before_anything_is_read() -> None:
    """A dataset with fewer rows than a batch raises EmptyDatasetError when an iteration begins."""
    with pytest.raises(EmptyDatasetError, match="fewer than one batch of 20"):
        iter(ps.torch.loader(example().shuffle().batch(20)))


def failing(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Raise ZeroDivisionError for every batch."""
    raise ZeroDivisionError(str(sorted(batch)))


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}])
def test_no_thread_is_left(tmp_path: Path, options: dict[str, Any]) -> None:
    """Threads end with the last batch, a break, `close()` or an error, even if the loader is deleted before."""
    ds = stored(tmp_path).shuffle(ps.WindowShuffle(rows=30)).batch(5).using(threads=4)
    loader = ps.torch.loader(ds, **options)

    list(loader)
    assert threads() == []
    for _ in loader:
        assert threads() != []
        break
    assert threads() == []
    batches: Any = iter(loader)
    next(batches)
    batches.close()
    assert threads() == []
    assert list(batches) == []
    with pytest.raises(ZeroDivisionError):
        list(ps.torch.loader(ds.map(failing), **options))
    assert threads() == []
    other = iter(loader)
    next(other)
    del loader
    assert len(list(other)) == 23
    assert threads() == []


def test_a_break_releases_the_window_buffer(tmp_path: Path) -> None:
    """After a break a loader holds no window buffer, and has the right state."""
    from penstock._engine.window.buffer import WindowBuffer

    loader = ps.torch.loader(stored(tmp_path).shuffle(ps.WindowShuffle(rows=30)).batch(5))
    for _ in loader:
        break
    gc.collect()

    assert [found for found in gc.get_objects() if type(found) is WindowBuffer] == []
    assert loader.state_dict() == loader.state_at(1)


def test_two_iterations_at_once_are_two_epochs() -> None:
    """Two iterators of one loader read two consecutive epochs."""
    ds = example().select("id").shuffle(seed=4).batch(5)
    loader, plain = ps.torch.loader(ds), ps.loader(ds)
    first, second = iter(loader), iter(loader)
    found = [ids(batches) for batches in (first, second)]

    assert found == [ids(plain), ids(plain)]


@pytest.mark.parametrize("saved", [None, 3, [1], [1, -1], ["1", "2"], [1, 2, 3]])
def test_damaged_epochs_of_a_trainer_raise(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalid epochs of a trainer in a state raise StateError under Lightning only."""
    first = ps.torch.loader(example().select("id").batch(4))
    state = {**first.state_dict(), "trainer": saved}

    first.load_state_dict(state)
    monkeypatch.setattr("penstock.torch._frameworks.is_lightning", lambda: True)
    with pytest.raises(StateError, match="expected two epochs"):
        first.load_state_dict(state)


@pytest.mark.parametrize(
    ("option", "value", "advice"),
    [("batch_size", 32, "penstock.torch.loader(ds.batch(32))."), ("num_workers", 4, "ds.using(threads=...)")],
)
def test_options_of_torchs_loader_raise_an_error_that_names_the_counterpart(option: str, value: Any, advice: str) -> None:
    """An option of torch's `DataLoader` raises UnknownArgumentError, which names the counterpart in Penstock."""
    with pytest.raises(UnknownArgumentError) as refused:
        ps.torch.loader(example(), **{option: value})

    assert str(refused.value).startswith(f"penstock.torch.loader() got {option}={value}; expected options: rank, ")
    assert advice in str(refused.value)


@pytest.mark.slow
def test_lightning_does_not_warn_about_the_length_of_a_loader(tmp_path: Path) -> None:
    """Lightning accepts a loader with a length over an iterable dataset without its warning."""
    if find_spec("lightning") is None:
        pytest.skip("lightning is not installed.")
    script = """
import sys, warnings
warnings.filterwarnings("error", message=".*has `__len__` defined")
import lightning, torch
from lightning.fabric.utilities.data import has_iterable_dataset, has_len
import penstock as ps
from penstock.testing import example

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line, self.seen = torch.nn.Linear(1, 1), []
    def training_step(self, batch, _):
        self.seen += batch["id"].tolist()
        return self.line(torch.zeros(1, 1)).mean()
    def validation_step(self, batch, _):
        pass
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-9)

loader, model = ps.torch.loader(example().select("id").batch(5)), Model()
assert has_len(loader) and has_iterable_dataset(loader)
quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, default_root_dir=sys.argv[1], **quiet)
trainer.fit(model, loader, ps.torch.loader(example().select("id").batch(5)))
print(sorted(model.seen), isinstance(loader.dataset, torch.utils.data.IterableDataset))
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9] True"


def test_a_jagged_column_of_lists_without_offsets_raises() -> None:
    """A column of lists without offsets in `jagged=` raises ArgumentError, which suggests `.ragged()`."""
    ds = MemoryFormat.of({"tokens": [[1], [2, 3]]}, row_group_rows=2).open().batch(2)

    with pytest.raises(ArgumentError, match=r"and has no offsets.*\.ragged\(penstock\.Offsets\(\), 'tokens'\)"):
        next(iter(ps.torch.loader(ds, jagged=["tokens"])))
