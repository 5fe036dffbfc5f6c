"""A position as a few integers of JSON, and back; a state that belongs elsewhere is refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from penstock._engine.deal import merged
from penstock._engine.order import ORDER
from penstock.errors import StateError
from penstock.model import Deal, Plan, Position

__all__ = ["STATE", "State", "dump", "load"]

STATE = 1
State: TypeAlias = dict[str, Any]
KEYS = ("state", "order", "table", "version", "fingerprint", "seed", "epoch", "deals", "alike")


def dump(plan: Plan, position: Position, *, seed: int, alike: bool) -> State:
    """Return a position as JSON can hold it.

    `alike` says whether all ranks consume as many rows in every step, so that the state of one speaks for all.
    """
    return {
        "state": STATE,
        "order": ORDER,
        "table": plan.snapshot.table,
        "version": plan.snapshot.version,
        "fingerprint": plan.fingerprint,
        "seed": seed,
        "epoch": position.epoch,
        "deals": [[deal.lanes, deal.stride, deal.ranks, _listed(deal.rows)] for deal in position.deals],
        "alike": alike,
    }


def load(state: Mapping[str, Any] | Sequence[Mapping[str, Any]], plan: Plan, *, seed: int, ranks: int) -> Position:
    """Return the position that a state, or the states of all ranks, say.

    Raises:
        StateError: If a state is damaged, or was saved over another table, order or question.
    """
    states = [state] if isinstance(state, Mapping) else list(state)
    if not states:
        msg = "An empty list of states was given. Pass one state, or those of all ranks in the order of ranks."
        raise StateError(msg)
    for one in states:
        _check(one, plan, seed)
    positions = [_position(one) for one in states]
    if len(positions) > 1:
        return merged(plan.num_rows, positions)
    position, deals = positions[0], positions[0].deals
    if deals and deals[-1].ranks != ranks and not states[0]["alike"] and isinstance(deals[-1].rows, int):
        msg = (
            f"The state of one rank was given to resume {deals[-1].ranks} ranks on {ranks}, but their ranks do not "
            "advance alike (uneven batches, a lazy filter or a map that changes the number of rows). Pass the states of "
            "all ranks, in the order of ranks."
        )
        raise StateError(msg)
    return position


def _check(state: Mapping[str, Any], plan: Plan, seed: int) -> None:
    """Refuse a state that does not belong to this plan, naming the first thing that differs."""
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
    _check_plan(state, plan, seed)


def _check_plan(state: Mapping[str, Any], plan: Plan, seed: int) -> None:
    told = {"table": plan.snapshot.table, "version": plan.snapshot.version, "seed": seed}
    for key, ours in told.items():
        if state[key] != ours:
            msg = (
                f"The state was saved with {key} {state[key]!r}, but this dataset has {key} {ours!r}. "
                f"Resume over the same {key}, or start without the state."
            )
            raise StateError(msg)
    if state["fingerprint"] != plan.fingerprint:
        theirs, ours = (str(text).partition("-") for text in (state["fingerprint"], plan.fingerprint))
        what = "its files or rows" if theirs[0] != ours[0] else "the filter, shuffle, window or limit"
        msg = (
            f"The state's fingerprint {state['fingerprint']!r} is not {plan.fingerprint!r}: since it was saved, {what} "
            "changed. Rows would be lost or repeated. Ask the same question of the same version of the table, or start "
            "without the state."
        )
        raise StateError(msg)


def _position(state: Mapping[str, Any]) -> Position:
    """Return the position in a state whose origin has been checked."""
    try:
        deals = tuple(
            Deal(lanes=lanes, stride=stride, ranks=ranks, rows=rows if isinstance(rows, int) else tuple(rows))
            for lanes, stride, ranks, rows in state["deals"]
        )
        sound = all(_sound(deal) for deal in deals) and isinstance(state["epoch"], int) and state["epoch"] >= 0
    except (TypeError, ValueError):
        sound = False
    if not sound:
        msg = (
            f"The state's position cannot be: epoch {state['epoch']!r}, deals {state['deals']!r}. Deals are lists of "
            "lanes, stride, ranks and rows. The state was damaged; start without it."
        )
        raise StateError(msg)
    return Position(epoch=state["epoch"], deals=deals)


def _sound(deal: Deal) -> bool:
    rows = (deal.rows,) if isinstance(deal.rows, int) else deal.rows
    numbers = all(isinstance(number, int) for number in (deal.lanes, deal.stride, deal.ranks, *rows))
    return (
        numbers
        and min(deal.lanes, deal.stride, deal.ranks) > 0
        and deal.lanes % deal.ranks == 0
        and min(rows) >= 0
        and (isinstance(deal.rows, int) or len(rows) == deal.ranks)
    )


def _listed(rows: int | tuple[int, ...]) -> int | list[int]:
    return rows if isinstance(rows, int) else list(rows)
