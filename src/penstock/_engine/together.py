"""One table for all ranks: rank 0 opens and plans, each counts its share of the rows, and all read what rank 0 saw."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock._engine.agree import Group
from penstock._engine.question import Question
from penstock._engine.table import Table, asked
from penstock.errors import ArgumentError

__all__ = ["agreed", "check_told"]


def agreed(table: Table, question: Question, group: Group) -> Table:
    """Return the table as rank 0 sees it, with its plan made.

    Whatever is written to the table between the starts of two ranks, all read the same rows.

    Raises:
        ArgumentError: If ranks ask different questions.
        DataError: If rank 0 cannot read what it needs, or a rank cannot count its share.
    """
    check_told(group, lambda: _told(table, question))
    snapshot, laid = group.share(lambda: (table.snapshot, table.laid(question)))
    found = replace(table, snapshot=snapshot, _plans=OrderedDict(), _groups=OrderedDict())
    found.settle(question, laid, group)
    return found


def check_told(group: Group, told: Callable[[], Mapping[str, Any]]) -> None:
    """Refuse ranks that say different things of what they ask.

    Raises:
        ArgumentError: If they do, on all ranks.
    """
    questions = group.gather(told)
    for rank, found in enumerate(questions):
        for key, value in found.items():
            if value != questions[0].get(key):
                msg = (
                    f"Rank {rank} asks for {key} {value}, and rank 0 for {questions[0].get(key)}. All ranks must ask the same. "
                    "Build the dataset alike on all of them."
                )
                raise ArgumentError(msg)


def _told(table: Table, question: Question) -> Mapping[str, Any]:
    """Return what must be the same on all ranks."""
    question_told = {name: json.dumps(value) for name, value in asked(question).items()}
    return {
        "the table": table.snapshot.table,
        **{f"the {name}": value for name, value in question_told.items()},
        "batches of": question.size,
        "last=": question.ending,
        "lanes": question.lanes,
        ".repeat()": question.epochs,
        "ranks": question.world_size,
    }
