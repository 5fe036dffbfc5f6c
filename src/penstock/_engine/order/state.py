"""A position as a few integers of JSON, and back; a state that belongs elsewhere is refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, SupportsIndex, TypeAlias

from penstock._engine.order.shard import merge_positions, shards
from penstock._engine.query.query import Query
from penstock._engine.query.values import ORDER
from penstock.errors import ArgumentError, StateError
from penstock.model import Assignment, Plan, Position

__all__ = ["STATE", "State", "checked_epoch", "dump", "load"]

STATE = 1
State: TypeAlias = dict[str, Any]
MOST_EPOCHS = 1 << 62
"""Epochs that can be counted: beyond them, numbers of epochs and rows would not fit 64 bits."""

KEYS = ("state", "order", "table", "version", "fingerprint", "seed", "epoch", "deals", "rank", "alike")


def checked_epoch(epoch: Any) -> int:
    """Return the number of an epoch that is to begin.

    Raises:
        ArgumentError: If it is no number from 0 to 2**62 - 1.
    """
    if isinstance(epoch, SupportsIndex) and not isinstance(epoch, bool) and 0 <= index(epoch) < MOST_EPOCHS:
        return index(epoch)
    msg = f"set_epoch got {epoch!r}. Epochs count from 0 to 2**62 - 1. Give the number of the epoch to begin."
    raise ArgumentError(msg)


def dump(plan: Plan, position: Position, query: Query, *, alike: bool) -> State:
    """Return a position as JSON can hold it.

    `alike` says whether all ranks consume as many rows in every step, so that the state of one speaks for all.
    """
    mixture = {} if plan.mixture is None else {"mixture": plan.mixture}
    return {
        "state": STATE,
        "order": ORDER,
        "table": plan.snapshot.table,
        "version": plan.snapshot.version,
        "fingerprint": plan.fingerprint,
        "seed": query.seed,
        "epoch": position.epoch,
        "deals": [
            [assignment.lanes, assignment.stride, assignment.ranks, _listed(assignment.rows)]
            for assignment in position.assignments
        ],
        "rank": query.rank,
        "alike": alike,
        **mixture,
    }


def load(state: Mapping[str, Any] | Sequence[Mapping[str, Any]], plan: Plan, query: Query) -> Position:
    """Return the position that a state, or the states of all ranks, say.

    Raises:
        StateError: If a state is damaged, or was saved over another table, order or question.
    """
    states: list[Any] = list(state) if isinstance(state, list | tuple) else [state]
    if not states:
        msg = "An empty list of states was given. Pass one state, or those of all ranks."
        raise StateError(msg)
    for one in states:
        _check(one, plan, query.seed)
    found = sorted(((one, _position(one)) for one in states), key=lambda pair: pair[0]["rank"])
    states, positions = [one for one, _ in found], [position for _, position in found]
    for position in positions:
        if position.assignments:
            shards(plan.num_rows, position.assignments)  # which refuses what cannot have been dealt
    if len(positions) > 1:
        _check_all(states, positions)
        return merge_positions(plan.num_rows, positions)
    _check_alone(states[0], positions[0], query)
    return positions[0]


def _check_all(states: Sequence[Mapping[str, Any]], positions: Sequence[Position]) -> None:
    """Refuse several states that are not those of all ranks at one moment."""
    ranks = [one["rank"] for one in states]
    if ranks != list(range(len(states))):
        msg = f"States of ranks {ranks} were given. One of each rank was expected, from 0 on. Pass the states of all ranks."
        raise StateError(msg)
    if any(one["alike"] for one in states) and any(position != positions[0] for position in positions):
        msg = (
            "The states given were saved after different steps, though their ranks advance alike. Pass states that were all "
            "saved after the same step; the state of one rank is enough."
        )
        raise StateError(msg)


def _check_alone(state: Mapping[str, Any], position: Position, query: Query) -> None:
    """Refuse the state of one rank where it does not speak for the rank that loads it."""
    assignments = position.assignments
    if state["alike"] or not assignments or assignments[-1].rows == 0 or not isinstance(assignments[-1].rows, int):
        return
    if assignments[-1].ranks != query.world_size:
        msg = (
            f"The state of one rank was given to resume {assignments[-1].ranks} ranks on {query.world_size}, but their "
            "ranks do "
            "not advance alike (uneven batches, a lazy filter or a map that changes the number of rows). Pass the states of "
            "all ranks."
        )
        raise StateError(msg)
    if state["rank"] != query.rank:
        msg = (
            f"The state of rank {state['rank']} was given to rank {query.rank}, but their ranks do not advance alike "
            "(uneven batches, a lazy filter or a map that changes the number of rows). Pass each rank its own, or all states."
        )
        raise StateError(msg)


def _check(state: Mapping[str, Any], plan: Plan, seed: int) -> None:
    """Refuse a state that does not belong to this plan, naming the first thing that differs."""
    if not isinstance(state, Mapping):
        hint = " Of text, take json.loads(text)." if isinstance(state, str | bytes) else ""
        msg = f"{type(state).__name__} was given as a state. A dict as `state_dict()` returns it was expected.{hint}"
        raise StateError(msg)
    missing = [key for key in KEYS if key not in state]
    if missing:
        msg = f"The state has no {', '.join(missing)}. A state as `state_dict()` returns it was expected. Start without it."
        raise StateError(msg)
    if state["state"] != STATE:
        msg = (
            f"The state is of kind {state['state']!r}; this version reads kind {STATE}. "
            "Resume it with the version of Penstock that saved it, or start without it."
        )
        raise StateError(msg)
    if state["order"] != ORDER:
        msg = (
            f"The state was saved in order number {state['order']!r}; this version knows order number {ORDER}. "
            "Resume it with the version of Penstock that saved it, or start without it."
        )
        raise StateError(msg)
    _check_mixture(state, plan)
    ours = {"table": plan.snapshot.table, "version": plan.snapshot.version, "seed": seed, "fingerprint": plan.fingerprint}
    _check_same(state, ours, "this dataset")


def _opened(version: str) -> str:
    """Return the call that opens a version, or the changes from one to another."""
    first, between, last = version.partition("..")
    return f"penstock.changes(url, {first}, {last})" if between else f"penstock.open(url, version={version!r})"


def _check_same(state: Mapping[str, Any], ours: Mapping[str, Any], whose: str) -> None:
    """Refuse what was saved of another table or question than ours."""
    for key in ("table", "version", "seed"):
        if state[key] != ours[key]:
            how = f" ({_opened(str(state[key]))})" if key == "version" and state[key] else ""
            msg = (
                f"The state was saved with {key} {state[key]!r}, but {whose} has {key} {ours[key]!r}. "
                f"Resume over the same {key}{how}, or start without the state."
            )
            raise StateError(msg)
    if state["fingerprint"] != ours["fingerprint"]:
        # The question is asked first: another filter also reads other files and rows.
        their_question, our_question = (str(one["fingerprint"]).partition("-")[2] for one in (state, ours))
        what = "the filter, sequence, shuffle, window or limit" if their_question != our_question else "its files or rows"
        what = what if whose == "this dataset" else f"of {whose} {what}"
        msg = (
            f"The state's fingerprint {state['fingerprint']!r} is not {ours['fingerprint']!r}: since it was saved, {what} "
            "changed. Rows would be lost or repeated. Ask the same question of the same version of the table, or start "
            "without the state."
        )
        raise StateError(msg)


def _check_mixture(state: Mapping[str, Any], plan: Plan) -> None:
    """Refuse the state of another mixture, naming the source that differs, or of none."""
    theirs, ours = state.get("mixture"), plan.mixture
    if (theirs is None) != (ours is None):
        kinds = ("a mixture", "one table") if ours is None else ("one table", "a mixture")
        msg = f"The state was saved of {kinds[0]}, and this is {kinds[1]}. Resume what it was saved of, or start without it."
        raise StateError(msg)
    if theirs is None or ours is None:
        return
    try:
        for what in ("sources", "shares", "batches", "stop"):
            their, our = (len(one[what]) if what == "sources" else one[what] for one in (theirs, ours))
            if their != our:
                msg = (
                    f"The state was saved of a mixture with {what} {their!r}, and this one has {what} {our!r}. The rows of its "
                    "slots would be others. Mix the same sources by the same weights, or start without the state."
                )
                raise StateError(msg)
        for number, (their, our) in enumerate(zip(theirs["sources"], ours["sources"], strict=True)):
            _check_same(their, our, f"source {number} of this mixture")
    except (KeyError, TypeError) as error:
        msg = f"The state's mixture cannot be: {theirs!r}. The state was damaged; start without it."
        raise StateError(msg) from error


def _position(state: Mapping[str, Any]) -> Position:
    """Return the position in a state whose origin has been checked."""
    try:
        assignments = tuple(
            Assignment(lanes=lanes, stride=stride, ranks=ranks, rows=rows if isinstance(rows, int) else tuple(rows))
            for lanes, stride, ranks, rows in state["deals"]
        )
        sound = (
            all(_sound(assignment) for assignment in assignments) and _whole(state["epoch"]) and state["epoch"] < MOST_EPOCHS
        )
        sound = (
            sound and isinstance(state["deals"], list | tuple) and isinstance(state["alike"], bool) and _whole(state["rank"])
        )
    except (TypeError, ValueError):
        sound = False
    if not sound:
        msg = (
            f"The state's position cannot be: rank {state['rank']!r}, epoch {state['epoch']!r}, deals {state['deals']!r}. "
            "Ranks and epochs count from 0, and deals are a list of lists of lanes, stride, ranks and rows. The state was "
            "damaged; start without it."
        )
        raise StateError(msg)
    return Position(epoch=state["epoch"], assignments=assignments)


def _whole(number: object) -> bool:
    """Return whether something counts from 0."""
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _sound(assignment: Assignment) -> bool:
    rows = (assignment.rows,) if isinstance(assignment.rows, int) else assignment.rows
    numbers = all(isinstance(number, int) for number in (assignment.lanes, assignment.stride, assignment.ranks, *rows))
    return (
        numbers
        and min(assignment.lanes, assignment.stride, assignment.ranks) > 0
        and assignment.lanes % assignment.ranks == 0
        and min(rows) >= 0
        and (isinstance(assignment.rows, int) or len(rows) == assignment.ranks)
    )


def _listed(rows: int | tuple[int, ...]) -> int | list[int]:
    return rows if isinstance(rows, int) else list(rows)
