"""Ranks that are connected by gloo: equal steps, every row once, and resumes after a kill on other numbers of ranks."""

from __future__ import annotations

import itertools
from collections import Counter
from math import ceil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from gloo_ranks import Ranks
from products import product, selected
from strategies import rows

import penstock as ps

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

ROWS, GROUP = 211, 7
SIZES = [2, 3, 5, 1]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table of three files with row groups of seven rows."""
    folder = tmp_path / "table"
    folder.mkdir()
    for at, (start, stop) in enumerate([(0, 70), (70, 140), (140, ROWS)]):
        pq.write_table(rows(range(start, stop)), folder / f"{at}.parquet", row_group_size=GROUP)
    return folder


def flattened(found: Any) -> list[int]:
    """Return the numbers of nested lists as one flat list."""
    return [number for part in found for number in (flattened(part) if isinstance(part, list) else [part])]


@pytest.mark.parametrize(("size", "last"), product(SIZES, ["drop", "pad", "wrap", "uneven"]))
def test_every_row_comes_once_in_equal_steps(ranks: Ranks, table: Path, size: int, last: str) -> None:
    """Each rank reads what the NumPy loader gives for its shard. Only `uneven` has unequal steps."""
    found = ranks.done("epochs", size, table=str(table), window=30, seed=1, size=4, last=last)
    ds = ps.open(table).select("id").shuffle(ps.WindowShuffle(rows=30), seed=1).batch(4, last=last)  # type: ignore[arg-type]

    for rank, result in enumerate(found):
        plain = ps.loader(ds.shard(rank, size))
        expected = [[[int(one) for one in batch["id"][batch.get("_valid", slice(None))]] for batch in plain] for _ in range(2)]
        assert result["epochs"] == expected
        assert result["steps"] == len(result["epochs"][0])
    assert last == "uneven" or len({result["steps"] for result in found}) == 1
    for epoch in range(2):
        counts = Counter(flattened([result["epochs"][epoch] for result in found]))
        missing = ROWS - len(counts)
        assert missing < 4 * size if last == "drop" else missing == 0
        assert set(counts.values()) == {1} if last != "wrap" else sum(counts.values()) - ROWS < 5 * size


def test_epochs_differ_and_deal_rows_to_other_ranks(ranks: Ranks, table: Path) -> None:
    """Each epoch has another order, and deals rows to other ranks."""
    first, second = (result["epochs"] for result in ranks.done("epochs", 2, table=str(table), window=30, seed=1, size=4))

    assert first[0] != first[1]
    assert set(flattened(first[0])) & set(flattened(second[1]))


@pytest.mark.parametrize("size", [2, 3])
def test_a_filter_is_counted_in_shares(ranks: Ranks, table: Path, tmp_path: Path, size: int) -> None:
    """Each rank counts an equal share of the row groups, and all agree on the rows. A second start uses cached counts."""
    options = {"table": str(table), "window": 30, "size": 4, "below": 2, "cache": str(tmp_path / "cache")}
    found = ranks.done("counts", size, **options)
    again = ranks.done("counts", size, **options)

    groups = 30  # of 31: statistics decide the last one, which has a single row
    passing = sum(number % 3 < 2 for number in range(ROWS))
    assert sum(result["counted"] for result in found) == groups
    assert max(result["counted"] for result in found) - min(result["counted"] for result in found) <= 1
    assert {result["rows"] for result in found} == {passing}
    assert len({result["fingerprint"] for result in found + again}) == 1
    assert [result["counted"] for result in again] == [0] * size
    assert len(list((tmp_path / "cache" / "counts").iterdir())) == 1


def test_a_filter_gives_every_row_once(ranks: Ranks, table: Path) -> None:
    """With an eager or a lazy filter, the rows that pass come once over all ranks."""
    passing = [number for number in range(ROWS) if number % 3 < 2]
    for lazy in (False, True):
        options = {"table": str(table), "window": 30, "size": 4, "below": 2, "lazy": lazy, "last": "uneven"}
        found = ranks.done("epochs", 3, **options)

        for epoch in range(2):
            assert sorted(flattened([result["epochs"][epoch] for result in found])) == passing


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({"seed": 8}, "ArgumentError: Rank 1 asks for the seed 8, and rank 0 for 7."),
        ({"size": 5}, "ArgumentError: Rank 1 asks for batches of 5, and rank 0 for 4."),
        ({"last": "pad"}, "ArgumentError: Rank 1 asks for last= pad, and rank 0 for drop."),
        ({"lanes": 6}, "ArgumentError: Rank 1 asks for lanes 6, and rank 0 for None."),
        ({"repeat": 2}, "ArgumentError: Rank 1 asks for .repeat() 2, and rank 0 for 1."),
        ({"columns": ["third"]}, "ArgumentError: Rank 1 asks for the columns third, and rank 0 for id."),
        ({"clause": "nulls"}, "ArgumentError: Rank 1 asks for the policies Fill(value=0) of 'id', and rank 0 for None."),
        ({"clause": "row ids"}, "ArgumentError: Rank 1 asks for .with_row_ids() True, and rank 0 for False."),
        ({"clause": "stack"}, "ArgumentError: Rank 1 asks for .stack() [['x', 'id']], and rank 0 for []."),
        ({"clause": "map"}, "ArgumentError: Rank 1 asks for a map that returns ['y: int64 ()'], and rank 0 for None."),
        ({"jagged": ["id"]}, "ArgumentError: Rank 1 asks for jagged= ['id'], and rank 0 for []."),
    ],
)
def test_ranks_with_different_queries_all_raise(ranks: Ranks, table: Path, other: dict[str, Any], complaint: str) -> None:
    """A query that differs on one rank raises an error on all ranks, which names the difference."""
    each = [{}, other, {}]
    found = ranks.failed("unlike", 3, table=str(table), window=30, seed=7, size=4, each=each)

    assert found == [f"{complaint} All ranks need the same query. Build the dataset alike on all of them."] * 3


def test_a_clause_that_only_rank_0_has_raises_too(ranks: Ranks, table: Path) -> None:
    """A clause that only rank 0 has raises an error on all ranks too."""
    each = [{"clause": "sequence"}, {}]
    found = ranks.failed("unlike", 2, table=str(table), size=4, each=each)

    assert len(set(found)) == 1
    assert found[0].startswith("ArgumentError: Rank 1 asks for the sequence None, and rank 0 for {")


@pytest.mark.parametrize(
    "same", [{"columns": [".*"]}, {"clause": "all"}, {"clause": "default"}, {"clause": "map without fields"}]
)
def test_ranks_with_equivalent_queries_agree(ranks: Ranks, table: Path, same: dict[str, Any]) -> None:
    """Queries that are written differently but give the same batches are accepted."""
    columns = [".*"] if "columns" in same or same.get("clause") == "all" else ["id"]

    ranks.done("unlike", 2, table=str(table), size=4, each=[{"columns": columns}, {"columns": columns, **same}])


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("shard", "ArgumentError: The dataset is rank 0 of 2 by .shard(), and this process is rank 1 of 2;"),
        ("table", "ArgumentError: loader() got str; expected a dataset."),
    ],
)
def test_an_invalid_argument_on_one_rank_raises_on_all(ranks: Ranks, table: Path, kind: str, complaint: str) -> None:
    """An invalid dataset on one rank raises an error on all ranks, so that none waits for it."""
    found = ranks.failed("misgiven", 2, table=str(table), size=4, kind=kind)

    assert len(found) == 2
    assert all(message.startswith(complaint) for message in found)


def test_a_file_that_rank_0_cannot_read_raises_on_all(ranks: Ranks, table: Path) -> None:
    """An error that occurs while rank 0 plans is raised on all ranks."""
    found = ranks.failed("vanished", 3, table=str(table), window=30, size=4, file=str(table / "1.parquet"))

    assert len(set(found)) == 1
    assert found[0].startswith("DataChangedError: ")
    assert "1.parquet" in found[0]


@pytest.mark.parametrize(("failing", "unsent"), [(0, False), (2, False), (1, True)])
def test_an_error_on_one_rank_is_raised_on_all(
    ranks: Ranks, table: Path, tmp_path: Path, failing: int, *, unsent: bool
) -> None:
    """An error on any rank is raised on all ranks. An error that cannot be unpickled is reported by its text."""
    options = {"table": str(table), "window": 30, "size": 4, "below": 2, "cache": str(tmp_path / "cache")}
    found = ranks.failed("failing_count", 3, **options, failing=failing, unsent=unsent, error=["the", "disk"])

    assert found == ["PenstockError: Unsent: the disk" if unsent else "OSError: [Errno the] disk"] * 3


@pytest.mark.parametrize("read", [0, 2])
def test_an_append_between_the_starts_of_two_ranks_changes_nothing(ranks: Ranks, table: Path, read: int) -> None:
    """A rank that opens the table after an append reads the files that rank 0 saw, even if it has read all files before."""
    found = ranks.done("appended", 3, table=str(table), window=30, size=4, last="uneven", read=read)

    assert [result["opened"] for result in found] == [ROWS, ROWS + 50, ROWS + 50]
    assert sorted(flattened([result["batches"] for result in found])) == list(range(ROWS))


@pytest.mark.parametrize(("world", "mesh"), [(False, ""), (True, ""), (False, "dp")])
def test_tensor_parallel_ranks_get_the_same_data(ranks: Ranks, table: Path, mesh: str, *, world: bool) -> None:
    """Tensor-parallel ranks get the same rows from the data-parallel group, from its mesh, or from rank= and world_size=."""
    options = {"table": str(table), "window": 30, "size": 4, "last": "pad"}
    found = ranks.done("tensor_parallel", 4, **options, world=world, mesh=mesh, outside=False)

    read = {tuple(result["place"]): result["epochs"] for result in found}
    assert read[0, 0] == read[0, 1] != read[1, 0] == read[1, 1]
    for epoch in range(2):
        assert sorted(flattened([read[0, 0][epoch], read[1, 0][epoch]])) == list(range(ROWS))


def test_a_group_without_this_process_is_refused(ranks: Ranks, table: Path) -> None:
    """A process group that does not contain the process raises ArgumentError."""
    options = {"table": str(table), "window": 30, "size": 4, "world": False, "outside": True}
    outcome = ranks.run("tensor_parallel", 4, **options)

    assert outcome.found[3] == (
        "ArgumentError: loader() got a process_group that process 3 is not in; expected the group of all processes that read "
        "the dataset, with this one. Make the loader in processes of the group only."
    )


def test_a_mesh_of_several_dimensions_is_refused(ranks: Ranks, table: Path) -> None:
    """A mesh of several dimensions raises ArgumentError, which asks for one dimension or a group."""
    found = ranks.failed("tensor_parallel", 4, table=str(table), size=4, world=False, mesh="both", outside=False)

    for message in found:
        assert message.startswith("ArgumentError: loader() got process_group=DeviceMesh(")
        assert message.endswith('Give mesh["dp"], mesh.get_group("dp"), or the result of torch.distributed.new_group.')


def test_a_loader_made_before_the_group_is_refused_when_it_is_read(ranks: Ranks, table: Path) -> None:
    """A loader made before the process group raises when it is read, unless it was given rank= and world_size=."""
    options = {"table": str(table), "window": 30, "size": 4, "last": "pad", "environment": False}
    found = ranks.failed("too_early", 2, **options, alone=False)
    alone = ranks.done("too_early", 2, **options, alone=True)

    assert (
        found
        == [
            "ArgumentError: This loader was made as the only reader, and torch.distributed has 2 processes now; expected "
            "equal numbers, or rows would be read twice or never. Make the loader after "
            "torch.distributed.init_process_group (with Lightning: in train_dataloader), or give it rank= and world_size=."
        ]
        * 2
    )
    assert [sorted(flattened(result)) for result in alone] == [list(range(ROWS))] * 2


def test_a_loader_made_from_torchruns_environment_works_with_the_group(ranks: Ranks, table: Path) -> None:
    """A loader made before the process group takes its rank from torchrun's environment, and works with the group."""
    options = {"table": str(table), "window": 30, "size": 4, "last": "pad", "environment": True, "alone": False}
    found = ranks.done("too_early", 3, **options)

    assert sorted(flattened(found)) == list(range(ROWS))


def train_until_killed(
    ranks: Ranks, count: int, kill: tuple[int, int], states: Any, **options: Any
) -> tuple[list[int], list[Any]]:
    """Train until one rank is killed. Return the rows of the saved steps, and the state of rank 0."""
    outcome = ranks.run("train", count, kill=list(kill), states=states, **options)
    assert outcome.ended[kill[0]] == "killed"
    assert set(outcome.ended) <= {"killed", "failed", "done"}
    assert [len(result["epochs"][0]) for result in outcome.saved] == [kill[1]] * count
    return flattened([result["epochs"][0] for result in outcome.saved]), [outcome.saved[0]["state"]]


def train_to_the_end(ranks: Ranks, count: int, states: Any, **options: Any) -> tuple[list[list[int]], list[Any]]:
    """Train to the end. Return the rows of each epoch, and the result of each rank."""
    found = ranks.done("train", count, states=states, **options)
    return [flattened(list(epoch)) for epoch in zip(*(result["epochs"] for result in found), strict=True)], found


@pytest.mark.parametrize(("ranks_before_and_after", "last"), product([(3, 2), (2, 5), (5, 1), (1, 3), (2, 2)], ["pad", "drop"]))
def test_a_killed_job_resumes_on_another_number_of_ranks(
    ranks: Ranks, table: Path, ranks_before_and_after: tuple[int, int], last: str
) -> None:
    """After one process is killed in mid-step, a resume from the last saved state loses and repeats no row."""
    before, after = ranks_before_and_after
    options = {"table": str(table), "window": 30, "seed": 2, "size": 4, "last": last}
    steps = ROWS // (4 * before) // 2
    done, states = train_until_killed(ranks, before, (before - 1, steps), None, **options)
    (rest,), ended = train_to_the_end(ranks, after, states, **options)

    assert len(done) == steps * 4 * before
    assert_once(done + rest, options, after)
    assert {result["state"]["epoch"] for result in ended} == {1}


def assert_once(found: list[int], options: dict[str, Any], size: int) -> None:
    """Check that every row came once. With `drop`, less than a global batch may be missing."""
    assert len(found) == len(set(found))
    missing = ROWS - len(found)
    assert missing == 0 if options["last"] == "pad" else missing < options["size"] * size


@pytest.mark.parametrize("last", ["pad", "drop"])
def test_two_resumes_in_one_epoch_lose_and_repeat_nothing(ranks: Ranks, table: Path, last: str) -> None:
    """A job that was killed on three ranks, and again on two, finishes the epoch on five and reads the next one whole."""
    options = {"table": str(table), "window": 30, "seed": 2, "size": 4, "last": last}
    first, states = train_until_killed(ranks, 3, (1, 5), None, **options)
    second, states = train_until_killed(ranks, 2, (0, 7), states, **options)
    (rest, following), _ = train_to_the_end(ranks, 5, states, epochs=2, **options)

    assert (len(first), len(second), len(states[0]["deals"])) == (60, 56, 2)
    assert_once(first + second + rest, options, 5)
    assert_once(following, options, 5)


@pytest.mark.parametrize(("before", "after"), selected([(2, 3), (3, 3), (2, 1)], always=[(2, 3), (2, 1)]))
def test_a_resume_at_the_exact_end_begins_the_next_epoch(ranks: Ranks, table: Path, before: int, after: int) -> None:
    """A job that is killed after the last step has read the whole epoch, and resumes with the whole next one."""
    options = {"table": str(table), "window": 30, "seed": 2, "size": 4, "last": "pad"}
    steps = ceil(ceil(ROWS / before) / 4)
    done, states = train_until_killed(ranks, before, (before - 1, steps), None, **options)
    (rest,), _ = train_to_the_end(ranks, after, states, **options)
    (_, uninterrupted), _ = train_to_the_end(ranks, after, None, epochs=2, **options)

    assert (states[0]["epoch"], states[0]["deals"]) == (1, [])
    assert sorted(done) == list(range(ROWS))
    assert rest == uninterrupted


def test_ranks_that_do_not_advance_alike_resume_from_all_their_states(ranks: Ranks, table: Path) -> None:
    """On another number of ranks, `uneven` resumes from the states of all ranks. The state of one raises StateError."""
    options = {"table": str(table), "window": 30, "seed": 2, "size": 4, "last": "uneven"}
    outcome = ranks.run("train", 3, stop=6, **options)
    states = [result["state"] for result in outcome.found]
    done = flattened([result["epochs"] for result in outcome.found])
    (rest,), _ = train_to_the_end(ranks, 2, states, **options)
    refused = ranks.failed("train", 2, **{**options, "last": "drop"}, states=states[:1])

    assert len(done) == 3 * 6 * 4
    assert sorted(done + rest) == list(range(ROWS))
    assert refused[0].startswith("StateError: The state of one rank cannot resume 3 ranks on 2")


def units_left(rows_left: int, windows: int, window: int) -> int:
    """Return the most units that hold the remaining rows, and windows that are read again."""
    return -(-rows_left // GROUP) + windows * (window // GROUP + 2)


@pytest.mark.parametrize("steps", selected([0, 1, 5, 9, 13, 20], always=[0, 5, 20]))
def test_a_resume_reads_no_more_than_one_window_per_lane_again(ranks: Ranks, table: Path, steps: int) -> None:
    """A resume reads the remaining rows and at most one window per lane again, also on another number of ranks."""
    window = 5 * GROUP
    options = {"table": str(table), "window": window, "seed": 2, "size": 4, "last": "pad"}
    states = [ranks.done("train", 2, stop=steps, **options)[0]["state"]] if steps else None
    left = ROWS - 2 * 4 * steps
    _, same = train_to_the_end(ranks, 2, states, **options)
    _, other = train_to_the_end(ranks, 3, states, **options)

    for result in same:
        assert result["units"][0] <= units_left(-(-left // 2), 1, window)
    assert sum(result["units"][0] for result in other) <= units_left(left, 2 + 3, window)


def test_lanes_keep_global_batches_on_numbers_of_ranks_that_divide_them(ranks: Ranks, table: Path) -> None:
    """With six lanes, a state of three ranks resumes on one, two and three ranks with the same global batches."""
    options = {"table": str(table), "window": 12, "seed": 2, "last": "drop", "lanes": 6}
    started = ranks.done("train", 3, stop=4, size=4, **options)
    state = [started[0]["state"]]
    found = {size: ranks.done("train", size, states=state, size=12 // size, **options) for size in (1, 2, 3)}

    batches = {
        size: [
            sorted(flattened(step)) for step in itertools.zip_longest(*(result["epochs"][0] for result in each), fillvalue=[])
        ]
        for size, each in found.items()
    }
    whole = min(map(len, batches.values()))
    assert whole >= 12
    assert batches[1][:whole] == batches[2][:whole] == batches[3][:whole]
