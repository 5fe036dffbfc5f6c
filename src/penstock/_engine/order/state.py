"""Convert positions to states, which are a few integers of JSON, and back; refuse the state of another table or order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, SupportsIndex, TypeAlias

from penstock._engine.order.shard import merge_positions, shards
from penstock._engine.query.query import ORDER, Query
from penstock.errors import ArgumentError, StateError
from penstock.model import Assignment, Plan, Position

STATE = 1
State: TypeAlias = dict[str, Any]
MAX_EPOCHS = 1 << 62
"""The limit of epochs, so that counts of epochs and rows fit 64 bits."""

KEYS = ("state", "order", "table", "version", "fingerprint", "seed", "epoch", "deals", "rank", "alike")


def checked_epoch(epoch: Any) -> int:
    """Return the number of an epoch to start."""
    if isinstance(epoch, SupportsIndex) and not isinstance(epoch, bool) and 0 <= index(epoch) < MAX_EPOCHS:
        return index(epoch)
    msg = (
        f"set_epoch() got {epoch!r}; expected the number of the epoch to start, from 0 to 2**62 - 1, for example set_epoch(3)."
    )
    raise ArgumentError(msg)


def dump(plan: Plan, position: Position, query: Query, *, alike: bool) -> State:
    """Return a position as JSON values.

    `alike` says whether all ranks consume the same number of rows in every step, so that the state of one rank is enough.
    """
    mixture = {} if plan.mixture is None else {"mixture": plan.mixture}
    deals = [
        [each.lanes, each.stride, each.ranks, each.rows if isinstance(each.rows, int) else list(each.rows)]
        for each in position.assignments
    ]
    return {
        "state": STATE,
        "order": ORDER,
        "table": plan.snapshot.table,
        "version": plan.snapshot.version,
        "fingerprint": plan.fingerprint,
        "seed": query.seed,
        "epoch": position.epoch,
        "deals": deals,
        "rank": query.rank,
        "alike": alike,
        **mixture,
    }


def load(state: Mapping[str, Any] | Sequence[Mapping[str, Any]], plan: Plan, query: Query) -> Position:
    """Return the position of a state, or of the states of all ranks."""
    states: list[Any] = list(state) if isinstance(state, list | tuple) else [state]
    if not states:
        msg = "The list of states is empty; expected one state, or the states of all ranks."
        raise StateError(msg)
    for each in states:
        _check_origin(each, plan, query.seed)
    by_rank = sorted(((each, _position(each)) for each in states), key=lambda pair: pair[0]["rank"])
    states, positions = [each for each, _ in by_rank], [position for _, position in by_rank]
    for position in positions:
        if position.assignments:
            shards(plan.num_rows, position.assignments)  # raises if the assignments are not possible
    if len(positions) > 1:
        _check_all_ranks(states, positions)
        return merge_positions(plan.num_rows, positions)
    _check_one_rank(states[0], positions[0], query)
    return positions[0]


def _check_all_ranks(states: Sequence[Mapping[str, Any]], positions: Sequence[Position]) -> None:
    """Raise an error unless the states are those of all ranks after the same step."""
    ranks = [state["rank"] for state in states]
    if ranks != list(range(len(states))):
        msg = f"The states are of ranks {ranks}; expected one state of each rank, from 0 on. Pass the states of all ranks."
        raise StateError(msg)
    if any(state["alike"] for state in states) and any(position != positions[0] for position in positions):
        msg = (
            "The states were saved after different steps, though their ranks advance alike. Pass states that were all saved "
            "after the same step; the state of one rank is enough."
        )
        raise StateError(msg)


def _check_one_rank(state: Mapping[str, Any], position: Position, query: Query) -> None:
    """Raise an error if the state of one rank does not determine the position of the rank that loads it."""
    assignments = position.assignments
    if state["alike"] or not assignments or assignments[-1].rows == 0 or not isinstance(assignments[-1].rows, int):
        return
    reason = "their ranks do not advance alike (uneven batches, a lazy filter or a map that changes the number of rows)"
    if assignments[-1].ranks != query.world_size:
        ranks = f"{assignments[-1].ranks} ranks on {query.world_size}"
        msg = f"The state of one rank cannot resume {ranks}, because {reason}. Pass the states of all ranks."
        raise StateError(msg)
    if state["rank"] != query.rank:
        ranks = f"The state of rank {state['rank']} cannot resume rank {query.rank}"
        msg = f"{ranks}, because {reason}. Pass each rank its own state, or all states."
        raise StateError(msg)


def _check_origin(state: Mapping[str, Any], plan: Plan, seed: int) -> None:
    """Raise an error if a state does not belong to a plan, with the first difference."""
    if not isinstance(state, Mapping):
        hint = " Convert text with json.loads(text)." if isinstance(state, str | bytes) else ""
        msg = f"The state is of type {type(state).__name__}; expected a dict, as `state_dict()` returns it.{hint}"
        raise StateError(msg)
    missing = [key for key in KEYS if key not in state]
    if missing:
        msg = f"The state has no {', '.join(missing)}; expected a state as `state_dict()` returns it. Start without it."
        raise StateError(msg)
    remedy = "Resume it with the version of Penstock that saved it, or start without it."
    if state["state"] != STATE:
        msg = f"The state is of kind {state['state']!r}; this version reads kind {STATE}. {remedy}"
        raise StateError(msg)
    if state["order"] != ORDER:
        msg = f"The state was saved in order number {state['order']!r}; this version has order number {ORDER}. {remedy}"
        raise StateError(msg)
    _check_mixture(state, plan)
    own = {"table": plan.snapshot.table, "version": plan.snapshot.version, "seed": seed, "fingerprint": plan.fingerprint}
    _check_same(state, own, "this dataset")


def _open_call(version: str) -> str:
    """Return the call that opens a version, or the changes from one version to another."""
    first, between, last = version.partition("..")
    return f"penstock.changes(url, {first}, {last})" if between else f"penstock.open(url, version={version!r})"


def _check_same(state: Mapping[str, Any], own: Mapping[str, Any], whose: str) -> None:
    """Raise an error if a state was saved for another table, version, seed or query."""
    for key in ("table", "version", "seed"):
        if state[key] != own[key]:
            how = f" ({_open_call(str(state[key]))})" if key == "version" and state[key] else ""
            msg = (
                f"The state was saved with {key} {state[key]!r}, but {whose} has {key} {own[key]!r}. "
                f"Resume over the same {key}{how}, or start without the state."
            )
            raise StateError(msg)
    if state["fingerprint"] != own["fingerprint"]:
        # The query is compared first: another filter also selects other files and rows.
        state_query, own_query = (str(each["fingerprint"]).partition("-")[2] for each in (state, own))
        what = "the filter, sequence, shuffle, window or limit" if state_query != own_query else "its files or rows"
        what = what if whose == "this dataset" else f"of {whose} {what}"
        msg = (
            f"The state's fingerprint {state['fingerprint']!r} is not {own['fingerprint']!r}: since it was saved, {what} "
            "changed. Rows would be lost or repeated. Use the same query on the same version of the table, or start "
            "without the state."
        )
        raise StateError(msg)


def _check_mixture(state: Mapping[str, Any], plan: Plan) -> None:
    """Raise an error if a state was saved for another mixture, with the source that differs, or not for a mixture."""
    saved, own = state.get("mixture"), plan.mixture
    if (saved is None) != (own is None):
        kinds = ("a mixture", "one table") if own is None else ("one table", "a mixture")
        msg = f"The state was saved for {kinds[0]}, and this is {kinds[1]}. Resume it with {kinds[0]}, or start without it."
        raise StateError(msg)
    if saved is None or own is None:
        return
    try:
        for what in ("sources", "shares", "batches", "stop"):
            saved_value, own_value = (len(each[what]) if what == "sources" else each[what] for each in (saved, own))
            if saved_value != own_value:
                msg = (
                    f"The state was saved for a mixture with {what} {saved_value!r}, and this one has {what} {own_value!r}. "
                    "Its slots would have other rows. Mix the same sources by the same weights, or start without the state."
                )
                raise StateError(msg)
        for number, (saved_source, own_source) in enumerate(zip(saved["sources"], own["sources"], strict=True)):
            _check_same(saved_source, own_source, f"source {number} of this mixture")
    except (KeyError, TypeError) as error:
        msg = f"The state's mixture is not valid: {saved!r}. The state was damaged; start without it."
        raise StateError(msg) from error


def _position(state: Mapping[str, Any]) -> Position:
    """Return the position of a state whose origin has been checked."""
    try:
        assignments = tuple(
            Assignment(lanes=lanes, stride=stride, ranks=ranks, rows=rows if isinstance(rows, int) else tuple(rows))
            for lanes, stride, ranks, rows in state["deals"]
        )
        valid = all(map(_is_valid, assignments)) and _is_count(state["epoch"]) and state["epoch"] < MAX_EPOCHS
        valid = valid and isinstance(state["deals"], list | tuple)
        valid = valid and isinstance(state["alike"], bool) and _is_count(state["rank"])
    except (TypeError, ValueError):
        valid = False
    if not valid:
        msg = (
            f"The state's position is not valid: rank {state['rank']!r}, epoch {state['epoch']!r}, deals {state['deals']!r}. "
            "Ranks and epochs count from 0, and deals are a list of lists of lanes, stride, ranks and rows. "
            "The state was "
            "damaged; start without it."
        )
        raise StateError(msg)
    return Position(epoch=state["epoch"], assignments=assignments)


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _is_valid(assignment: Assignment) -> bool:
    rows = (assignment.rows,) if isinstance(assignment.rows, int) else assignment.rows
    numbers = all(isinstance(number, int) for number in (assignment.lanes, assignment.stride, assignment.ranks, *rows))
    return (
        numbers
        and min(assignment.lanes, assignment.stride, assignment.ranks) > 0
        and assignment.lanes % assignment.ranks == 0
        and min(rows) >= 0
        and (isinstance(assignment.rows, int) or len(rows) == assignment.ranks)
    )
