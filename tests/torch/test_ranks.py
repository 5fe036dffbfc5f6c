"""Several processes that talk by gloo: equal steps, every row once, killed and resumed on other numbers of them."""

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
    place = tmp_path / "table"
    place.mkdir()
    for at, (start, stop) in enumerate([(0, 70), (70, 140), (140, ROWS)]):
        pq.write_table(rows(range(start, stop)), place / f"{at}.parquet", row_group_size=GROUP)
    return place


def joined(found: Any) -> list[int]:
    """Return all numbers of lists of lists, however deep."""
    return [number for part in found for number in (joined(part) if isinstance(part, list) else [part])]


@pytest.mark.parametrize(("size", "last"), product(SIZES, ["drop", "pad", "wrap", "uneven"]))
def test_every_row_comes_once_in_equal_steps(ranks: Ranks, table: Path, size: int, last: str) -> None:
    """Two epochs on real ranks are those of the loader without torch, rank by rank; only `uneven` has unequal steps."""
    found = ranks.done("epochs", size, table=str(table), window=30, seed=1, size=4, last=last)
    ds = ps.open(table).select("id").shuffle(ps.WindowShuffle(rows=30), seed=1).batch(4, last=last)  # type: ignore[arg-type]

    for rank, own in enumerate(found):
        plain = ps.loader(ds.shard(rank, size))
        expected = [[[int(one) for one in batch["id"][batch.get("_valid", slice(None))]] for batch in plain] for _ in range(2)]
        assert own["epochs"] == expected
        assert own["steps"] == len(own["epochs"][0])
    assert last == "uneven" or len({own["steps"] for own in found}) == 1
    for epoch in range(2):
        counts = Counter(joined([own["epochs"][epoch] for own in found]))
        lost = ROWS - len(counts)
        assert lost < 4 * size if last == "drop" else lost == 0
        assert set(counts.values()) == {1} if last != "wrap" else sum(counts.values()) - ROWS < 5 * size


def test_epochs_differ_and_are_dealt_to_all(ranks: Ranks, table: Path) -> None:
    """A rank sees other rows, in another order, each epoch."""
    first, second = (own["epochs"] for own in ranks.done("epochs", 2, table=str(table), window=30, seed=1, size=4))

    assert first[0] != first[1]
    assert set(joined(first[0])) & set(joined(second[1]))


@pytest.mark.parametrize("size", [2, 3])
def test_a_filter_is_counted_in_shares(ranks: Ranks, table: Path, tmp_path: Path, size: int) -> None:
    """Each rank counts its share of the row groups, all agree on the rows, and a second start counts nothing."""
    asked = {"table": str(table), "window": 30, "size": 4, "below": 2, "cache": str(tmp_path / "cache")}
    found = ranks.done("counts", size, **asked)
    again = ranks.done("counts", size, **asked)

    groups = 30  # of 31, for of the last one, with a single row, statistics tell
    kept = sum(number % 3 < 2 for number in range(ROWS))
    assert sum(own["counted"] for own in found) == groups
    assert max(own["counted"] for own in found) - min(own["counted"] for own in found) <= 1
    assert {own["rows"] for own in found} == {kept}
    assert len({own["fingerprint"] for own in found + again}) == 1
    assert [own["counted"] for own in again] == [0] * size
    assert len(list((tmp_path / "cache" / "counts").iterdir())) == 1


def test_a_filter_gives_every_row_once(ranks: Ranks, table: Path) -> None:
    """Counted before, or filtered on the fly: the rows that pass come once over all ranks."""
    kept = [number for number in range(ROWS) if number % 3 < 2]
    for lazy in (False, True):
        asked = {"table": str(table), "window": 30, "size": 4, "below": 2, "lazy": lazy, "last": "uneven"}
        found = ranks.done("epochs", 3, **asked)

        for epoch in range(2):
            assert sorted(joined([own["epochs"][epoch] for own in found])) == kept


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
def test_ranks_that_ask_different_questions_are_all_told(
    ranks: Ranks, table: Path, other: dict[str, Any], complaint: str
) -> None:
    """None of them waits for the others; the message says who asks what."""
    each = [{}, other, {}]
    found = ranks.failed("unlike", 3, table=str(table), window=30, seed=7, size=4, each=each)

    assert found == [f"{complaint} All ranks need the same query. Build the dataset alike on all of them."] * 3


def test_a_clause_that_only_rank_0_has_is_told_too(ranks: Ranks, table: Path) -> None:
    """Whichever of them asks for more."""
    each = [{"clause": "sequence"}, {}]
    found = ranks.failed("unlike", 2, table=str(table), size=4, each=each)

    assert len(set(found)) == 1
    assert found[0].startswith("ArgumentError: Rank 1 asks for the sequence None, and rank 0 for {")


@pytest.mark.parametrize(
    "same", [{"columns": [".*"]}, {"clause": "all"}, {"clause": "default"}, {"clause": "map without fields"}]
)
def test_ranks_that_ask_the_same_in_other_words_agree(ranks: Ranks, table: Path, same: dict[str, Any]) -> None:
    """What batches have is compared, as far as it is known, and not how it was said."""
    columns = [".*"] if "columns" in same or same.get("clause") == "all" else ["id"]

    ranks.done("unlike", 2, table=str(table), size=4, each=[{"columns": columns}, {"columns": columns, **same}])


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("shard", "ArgumentError: The dataset is rank 0 of 2 by .shard(), and this process is rank 1 of 2."),
        ("table", "ArgumentError: loader got str; expected a dataset."),
    ],
)
def test_what_one_rank_is_given_wrong_is_told_to_all(ranks: Ranks, table: Path, kind: str, complaint: str) -> None:
    """The others do not wait for a rank that has no more to say."""
    found = ranks.failed("misgiven", 2, table=str(table), size=4, kind=kind)

    assert len(found) == 2
    assert all(told.startswith(complaint) for told in found)


def test_a_file_that_rank_0_cannot_read_is_an_error_everywhere(ranks: Ranks, table: Path) -> None:
    """What goes wrong while rank 0 plans is raised on all ranks."""
    found = ranks.failed("vanished", 3, table=str(table), window=30, size=4, file=str(table / "1.parquet"))

    assert len(set(found)) == 1
    assert found[0].startswith("DataChangedError: ")
    assert "1.parquet" in found[0]


@pytest.mark.parametrize(("failing", "unsent"), [(0, False), (2, False), (1, True)])
def test_what_goes_wrong_on_one_rank_is_raised_on_all(
    ranks: Ranks, table: Path, tmp_path: Path, failing: int, *, unsent: bool
) -> None:
    """Whichever rank it is; an error that cannot travel is told by its text."""
    asked = {"table": str(table), "window": 30, "size": 4, "below": 2, "cache": str(tmp_path / "cache")}
    found = ranks.failed("failing_count", 3, **asked, failing=failing, unsent=unsent, error=["the", "disk"])

    assert found == ["PenstockError: Unsent: the disk" if unsent else "OSError: [Errno the] disk"] * 3


@pytest.mark.parametrize("read", [0, 2])
def test_an_append_between_the_starts_of_two_ranks_changes_nothing(ranks: Ranks, table: Path, read: int) -> None:
    """A rank that opens the table after somebody wrote to it reads what rank 0 saw, whatever it has read of it before."""
    found = ranks.done("appended", 3, table=str(table), window=30, size=4, last="uneven", read=read)

    assert [own["opened"] for own in found] == [ROWS, ROWS + 50, ROWS + 50]
    assert sorted(joined([own["batches"] for own in found])) == list(range(ROWS))


@pytest.mark.parametrize(("world", "mesh"), [(False, ""), (True, ""), (False, "dp")])
def test_tensor_parallel_ranks_get_the_same_data(ranks: Ranks, table: Path, mesh: str, *, world: bool) -> None:
    """Given the group of data-parallel ranks, its mesh, or the group of all and this one's place, two times two agree."""
    asked = {"table": str(table), "window": 30, "size": 4, "last": "pad"}
    found = ranks.done("tensor_parallel", 4, **asked, world=world, mesh=mesh, outside=False)

    read = {tuple(own["place"]): own["epochs"] for own in found}
    assert read[0, 0] == read[0, 1] != read[1, 0] == read[1, 1]
    for epoch in range(2):
        assert sorted(joined([read[0, 0][epoch], read[1, 0][epoch]])) == list(range(ROWS))


def test_a_group_of_others_is_refused(ranks: Ranks, table: Path) -> None:
    """A process that is not in the group is told so."""
    asked = {"table": str(table), "window": 30, "size": 4, "world": False, "outside": True}
    outcome = ranks.run("tensor_parallel", 4, **asked)

    assert outcome.found[3] == (
        "ArgumentError: loader got a process_group that process 3 is not in. A group of the processes that share out the data, "
        "this one among them, was expected. Give that."
    )


def test_a_mesh_of_several_dimensions_is_no_group(ranks: Ranks, table: Path) -> None:
    """Which of its groups shares out the data is to be said."""
    found = ranks.failed("tensor_parallel", 4, table=str(table), size=4, world=False, mesh="both", outside=False)

    for told in found:
        assert told.startswith("ArgumentError: loader got process_group=DeviceMesh(")
        assert told.endswith('Give mesh["dp"], mesh.get_group("dp"), or what torch.distributed.new_group returns.')


def test_a_loader_made_before_the_group_is_refused_when_it_is_read(ranks: Ranks, table: Path) -> None:
    """As the only reader it would give every row to every rank; who wants that says so."""
    asked = {"table": str(table), "window": 30, "size": 4, "last": "pad", "environment": False}
    found = ranks.failed("too_early", 2, **asked, alone=False)
    alone = ranks.done("too_early", 2, **asked, alone=True)

    assert (
        found
        == [
            "ArgumentError: This loader was made as the only reader, and torch.distributed has 2 processes now, so that rows "
            "would be read more than once, or never. Make it after torch.distributed.init_process_group (with Lightning: in "
            "train_dataloader), or give it rank= and world_size=."
        ]
        * 2
    )
    assert [sorted(joined(own)) for own in alone] == [list(range(ROWS))] * 2


def test_a_loader_made_by_torchruns_environment_goes_on_with_the_group(ranks: Ranks, table: Path) -> None:
    """Ranks that torchrun has told of themselves are those of the group that they make later."""
    asked = {"table": str(table), "window": 30, "size": 4, "last": "pad", "environment": True, "alone": False}
    found = ranks.done("too_early", 3, **asked)

    assert sorted(joined(found)) == list(range(ROWS))


def killed(ranks: Ranks, count: int, kill: tuple[int, int], states: Any, **asked: Any) -> tuple[list[int], list[Any]]:
    """Train until one rank is killed; return the rows of the steps that were saved, and the state of rank 0."""
    outcome = ranks.run("train", count, kill=list(kill), states=states, **asked)
    assert outcome.ended[kill[0]] == "killed"
    assert set(outcome.ended) <= {"killed", "failed", "done"}
    assert [len(own["epochs"][0]) for own in outcome.saved] == [kill[1]] * count
    return joined([own["epochs"][0] for own in outcome.saved]), [outcome.saved[0]["state"]]


def finished(ranks: Ranks, count: int, states: Any, **asked: Any) -> tuple[list[list[int]], list[Any]]:
    """Train to the end; return the rows of each epoch, and what each rank returned."""
    found = ranks.done("train", count, states=states, **asked)
    return [joined(list(epoch)) for epoch in zip(*(own["epochs"] for own in found), strict=True)], found


@pytest.mark.parametrize(("ranks_before_and_after", "last"), product([(3, 2), (2, 5), (5, 1), (1, 3), (2, 2)], ["pad", "drop"]))
def test_a_killed_job_goes_on_with_another_number_of_ranks(
    ranks: Ranks, table: Path, ranks_before_and_after: tuple[int, int], last: str
) -> None:
    """One process is killed in the middle of a step; from the last saved state no row is lost or repeated."""
    before, after = ranks_before_and_after
    asked = {"table": str(table), "window": 30, "seed": 2, "size": 4, "last": last}
    steps = ROWS // (4 * before) // 2
    done, states = killed(ranks, before, (before - 1, steps), None, **asked)
    (rest,), ended = finished(ranks, after, states, **asked)

    assert len(done) == steps * 4 * before
    assert_once(done + rest, asked, after)
    assert {own["state"]["epoch"] for own in ended} == {1}


def assert_once(found: list[int], asked: dict[str, Any], size: int) -> None:
    """Check that every row came once; of `drop`, that less than a global batch did not come."""
    assert len(found) == len(set(found))
    lost = ROWS - len(found)
    assert lost == 0 if asked["last"] == "pad" else lost < asked["size"] * size


@pytest.mark.parametrize("last", ["pad", "drop"])
def test_two_resumes_in_one_epoch_lose_and_double_nothing(ranks: Ranks, table: Path, last: str) -> None:
    """Killed on three ranks, killed again on two, finished on five; and the epoch after that is whole."""
    asked = {"table": str(table), "window": 30, "seed": 2, "size": 4, "last": last}
    first, states = killed(ranks, 3, (1, 5), None, **asked)
    second, states = killed(ranks, 2, (0, 7), states, **asked)
    (rest, following), _ = finished(ranks, 5, states, epochs=2, **asked)

    assert (len(first), len(second), len(states[0]["deals"])) == (60, 56, 2)
    assert_once(first + second + rest, asked, 5)
    assert_once(following, asked, 5)


@pytest.mark.parametrize(("before", "after"), selected([(2, 3), (3, 3), (2, 1)], always=[(2, 3), (2, 1)]))
def test_a_resume_at_the_exact_end_begins_the_next_epoch(ranks: Ranks, table: Path, before: int, after: int) -> None:
    """Killed after the last step: the epoch is complete, and the resumed job reads the next one, whole."""
    asked = {"table": str(table), "window": 30, "seed": 2, "size": 4, "last": "pad"}
    steps = ceil(ceil(ROWS / before) / 4)
    done, states = killed(ranks, before, (before - 1, steps), None, **asked)
    (rest,), _ = finished(ranks, after, states, **asked)
    (_, uninterrupted), _ = finished(ranks, after, None, epochs=2, **asked)

    assert (states[0]["epoch"], states[0]["deals"]) == (1, [])
    assert sorted(done) == list(range(ROWS))
    assert rest == uninterrupted


def test_ranks_that_do_not_advance_alike_resume_from_all_their_states(ranks: Ranks, table: Path) -> None:
    """`uneven` on other ranks needs the state of each."""
    asked = {"table": str(table), "window": 30, "seed": 2, "size": 4, "last": "uneven"}
    outcome = ranks.run("train", 3, stop=6, **asked)
    states = [own["state"] for own in outcome.found]
    done = joined([own["epochs"] for own in outcome.found])
    (rest,), _ = finished(ranks, 2, states, **asked)
    refused = ranks.failed("train", 2, **{**asked, "last": "drop"}, states=states[:1])

    assert len(done) == 3 * 6 * 4
    assert sorted(done + rest) == list(range(ROWS))
    assert refused[0].startswith("StateError: The state of one rank cannot resume 3 ranks on 2")


def units_left(rows_left: int, windows: int, window: int) -> int:
    """Return how many units so many rows can lie in, and some windows that are read again."""
    return -(-rows_left // GROUP) + windows * (window // GROUP + 2)


@pytest.mark.parametrize("steps", selected([0, 1, 5, 9, 13, 20], always=[0, 5, 20]))
def test_a_resume_reads_no_more_than_one_window_per_lane_again(ranks: Ranks, table: Path, steps: int) -> None:
    """On as many ranks, and on others: what is read is what is left, and at most a window of each lane."""
    window = 5 * GROUP
    asked = {"table": str(table), "window": window, "seed": 2, "size": 4, "last": "pad"}
    states = [ranks.done("train", 2, stop=steps, **asked)[0]["state"]] if steps else None
    left = ROWS - 2 * 4 * steps
    _, same = finished(ranks, 2, states, **asked)
    _, other = finished(ranks, 3, states, **asked)

    for own in same:
        assert own["units"][0] <= units_left(-(-left // 2), 1, window)
    assert sum(own["units"][0] for own in other) <= units_left(left, 2 + 3, window)


def test_lanes_keep_global_batches_on_numbers_of_ranks_that_divide_them(ranks: Ranks, table: Path) -> None:
    """With as many lanes at the first start, one, two and three ranks see the same global batches after a resume."""
    asked = {"table": str(table), "window": 12, "seed": 2, "last": "drop", "lanes": 6}
    started = ranks.done("train", 3, stop=4, size=4, **asked)
    state = [started[0]["state"]]
    found = {size: ranks.done("train", size, states=state, size=12 // size, **asked) for size in (1, 2, 3)}

    batches = {
        size: [sorted(joined(step)) for step in itertools.zip_longest(*(own["epochs"][0] for own in each), fillvalue=[])]
        for size, each in found.items()
    }
    whole = min(map(len, batches.values()))
    assert whole >= 12
    assert batches[1][:whole] == batches[2][:whole] == batches[3][:whole]
