"""Pickles of Petastorm, read and written as data: nothing of them is imported, called or run.

`interpret` carries out the opcodes of a pickle over a closed table of names, and gives plain values, names and `Instance`s.
Whatever the bytes are, it ends in time and memory linear to their number, or in a `PickleProblem`. What it gives may share
parts or hold itself, so that whoever walks over it counts. `pickled` writes such values with opcodes of protocol 2, which
Petastorm reads on every Python that it runs on.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Any

from penstock.formats.petastorm.pickle.machine import Global, Instance, Machine, PickleProblem, kind_of
from penstock.formats.petastorm.pickle.names import ClosedNames
from penstock.formats.petastorm.pickle.opcodes import REFUSED, STEPS, STOP

__all__ = ["Global", "Instance", "PickleProblem", "interpret", "kind_of", "pickled"]

MOST_BYTES = 32 << 20
MOST_OPCODES = 500_000
MOST_STACK = 65_536
"""What is read of a pickle. A schema of a thousand fields has 20,000 opcodes."""


def interpret(data: bytes, most_opcodes: int = MOST_OPCODES) -> Any:
    r"""Return what a pickle holds.

    Args:
        data: The pickle.
        most_opcodes: How many of its opcodes are carried out, before it is taken for a trap.

    Raises:
        PickleProblem: If it is none, holds more than is allowed, or names what no dataset of Petastorm consists of.

    Example:
        >>> interpret(b"(lp0\nI1\naI2\na.")
        [1, 2]
        >>> interpret(b"cos\nsystem\n(S'reboot'\ntR.")
        Traceback (most recent call last):
            ...
        penstock...PickleProblem: at byte 0 it names os.system, which no dataset of Petastorm consists of
    """
    if len(data) > MOST_BYTES:
        raise PickleProblem(f"it has {len(data)} bytes, and {MOST_BYTES} are read at most")
    machine = Machine(data, ClosedNames(len(data)))
    try:
        return _run(machine, most_opcodes)
    except PickleProblem as problem:
        raise PickleProblem(f"at byte {machine.begin} {problem}") from problem.__cause__
    except (ArithmeticError, LookupError, TypeError, ValueError, struct.error) as error:
        raise PickleProblem(f"at byte {machine.begin} something makes no sense: {type(error).__name__}") from error


def _run(machine: Machine, most_opcodes: int) -> Any:
    """Return what is on the stack when a pickle says that it ends."""
    data, stack, size = machine.data, machine.stack, len(machine.data)
    for _ in range(most_opcodes):
        machine.begin = at = machine.at
        if at >= size:
            raise PickleProblem("it ends, and its opcode STOP was expected: it was cut short")
        opcode = data[at]
        machine.at = at + 1
        if opcode == STOP:
            return machine.pop()
        step = STEPS.get(opcode)
        if step is None:
            why = REFUSED.get(opcode, f"there is {bytes([opcode])!r}, which is no opcode of a pickle")
            raise PickleProblem(f"{why}, and no dataset of Petastorm does so")
        step(machine)
        if len(stack) > MOST_STACK:
            raise PickleProblem(f"more than {MOST_STACK} values lie on its stack")
    raise PickleProblem(f"it has more than {most_opcodes} opcodes, which is the most that is read")


def pickled(value: Any) -> bytes:
    """Return the pickle of a value: of `None`, booleans, whole numbers, texts, tuples, dicts, `Global`s and `Instance`s.

    An `Instance` that occurs twice is one object in the pickle too.

    Example:
        >>> interpret(pickled({"size": (1, None), "kind": Global("numpy", "int8")}))
        {'size': (1, None), 'kind': Global(module='numpy', name='int8', known=True)}
    """
    memo: dict[int, int] = {}
    return b"\x80\x02" + _written(value, memo) + b"."


def _written(value: Any, memo: dict[int, int]) -> bytes:  # noqa: PLR0911 - one for each kind
    """Return the opcodes that put a value on the stack."""
    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            raw = value.to_bytes(9, "little", signed=True)
            return b"J" + raw[:4] if -(2**31) <= value < 2**31 else b"\x8a\x09" + raw
        case str():
            raw = value.encode("utf-8", "surrogatepass")
            return b"X" + len(raw).to_bytes(4, "little") + raw
        case tuple():
            return b"(" + b"".join(_written(each, memo) for each in value) + b"t"
        case Global():
            return f"c{value.module}\n{value.name}\n".encode()
        case dict():
            begin = _written(Global("collections", "OrderedDict"), memo) + b")R" if isinstance(value, OrderedDict) else b"}"
            items = (_written(key, memo) + _written(each, memo) for key, each in value.items())
            return begin + b"(" + b"".join(items) + b"u"
        case Instance():
            return _instance(value, memo)
    msg = f"{kind_of(value)} cannot be pickled"
    raise TypeError(msg)


def _instance(made: Instance, memo: dict[int, int]) -> bytes:
    """Return the opcodes of an object, or of a reference to it where it was written before."""
    if id(made) in memo:
        return b"j" + memo[id(made)].to_bytes(4, "little")
    state = b"" if made.state is None else _written(made.state, memo) + b"b"
    memo[id(made)] = len(memo)
    begin = _written(made.kind, memo) + _written(made.parts, memo) + b"\x81"
    return begin + b"r" + memo[id(made)].to_bytes(4, "little") + state
