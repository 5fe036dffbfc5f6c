"""A dataset in another process: with the plan that was made, so that it is not made again, and with files opened anew."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import cloudpickle

from penstock._engine.table import Planned, Table
from penstock.dataset import Dataset

__all__ = ["received", "renewed", "sent"]


def sent(ds: Dataset) -> bytes:
    """Return a dataset as it travels; functions of all kinds travel too."""
    table = ds._table  # noqa: SLF001 - a dataset has no other parts
    plans = {
        name: (made.plan, made.shuffle, made.pruned, made.reader.condition, made.reader.lazy)
        for name, made in table._plans.items()  # noqa: SLF001 - the same
    }
    packed: bytes = cloudpickle.dumps((ds, plans))
    return packed


def received(packed: bytes) -> Dataset:
    """Return a dataset that has travelled."""
    ds, plans = cloudpickle.loads(packed)
    table = ds._table  # noqa: SLF001 - a dataset has no other parts
    for name, (plan, shuffle, pruned, condition, lazy) in plans.items():
        reader = replace(table.reader(ds._question), condition=condition, lazy=lazy)  # noqa: SLF001 - the same
        table._plans[name] = Planned(plan=plan, shuffle=shuffle, reader=reader, pruned=pruned)  # noqa: SLF001 - the same
    found: Dataset = ds
    return found


def renewed(ds: Dataset) -> Dataset:
    """Return a dataset that a forked process has inherited, with nothing open that its parent uses too."""
    table = ds._table  # noqa: SLF001 - a dataset has no other parts
    filesystem = cloudpickle.loads(cloudpickle.dumps(table.filesystem))
    found: Table = replace(table, filesystem=filesystem, _plans=OrderedDict(), _groups=OrderedDict(table._groups))  # noqa: SLF001 - the same
    for name, made in table._plans.items():  # noqa: SLF001 - the same
        asked = found.reader(ds._question)  # noqa: SLF001 - the same
        reader = replace(asked, condition=made.reader.condition, lazy=made.reader.lazy)
        found._plans[name] = replace(made, reader=reader)  # noqa: SLF001 - the same
    return Dataset(found, ds._question)  # noqa: SLF001 - the same
