"""Reads and writes pickles of Petastorm as data. Nothing in a pickle is imported, called or executed.

`interpret` runs the opcodes of a pickle on a closed table of names, and returns plain values, names and `Instance`s. Its time
and memory are linear in the size of the pickle; otherwise it raises `PickleProblem`. The returned values may share parts or
contain themselves, so code that walks over them must count. `to_pickle` writes such values with protocol 2, which Petastorm
reads on every Python.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Any

from penstock.formats.petastorm.pickle.machine import Global, Instance, Machine, PickleProblem, kind_of
from penstock.formats.petastorm.pickle.names import ClosedNames
from penstock.formats.petastorm.pickle.opcodes import REFUSED, STEPS, STOP

__all__ = ["Global", "Instance", "PickleProblem", "interpret", "kind_of", "to_pickle"]

MAX_BYTES = 32 << 20
MAX_OPCODES = 500_000
MAX_STACK = 65_536
"""Limits of a pickle. A schema of a thousand fields has 20,000 opcodes."""


def interpret(data: bytes, max_opcodes: int = MAX_OPCODES) -> Any:
    r"""Return the value of a pickle.

    Args:
        data: The pickle.
        max_opcodes: The maximum number of its opcodes.

    Raises:
        PickleProblem: If it is invalid or too large, or has a name that no dataset of Petastorm has.

    Example:
        >>> interpret(b"(lp0\nI1\naI2\na.")
        [1, 2]
        >>> interpret(b"cos\nsystem\n(S'reboot'\ntR.")
        Traceback (most recent call last):
            ...
        penstock...PickleProblem: at byte 0 it names os.system, which no dataset of Petastorm consists of
    """
    if len(data) > MAX_BYTES:
        raise PickleProblem(f"it has {len(data)} bytes, and {MAX_BYTES} are read at most")
    machine = Machine(data, ClosedNames(len(data)))
    try:
        return _run(machine, max_opcodes)
    except PickleProblem as problem:
        raise PickleProblem(f"at byte {machine.begin} {problem}") from problem.__cause__
    except (ArithmeticError, LookupError, TypeError, ValueError, struct.error) as error:
        raise PickleProblem(f"at byte {machine.begin} something makes no sense: {type(error).__name__}") from error


def _run(machine: Machine, max_opcodes: int) -> Any:
    """Return the value on the stack at the end of a pickle."""
    data, stack, size = machine.data, machine.stack, len(machine.data)
    for _ in range(max_opcodes):
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
        if len(stack) > MAX_STACK:
            raise PickleProblem(f"more than {MAX_STACK} values lie on its stack")
    raise PickleProblem(f"it has more than {max_opcodes} opcodes, which is the most that is read")


def to_pickle(value: Any) -> bytes:
    """Return the pickle of `None`, booleans, integers, texts, tuples, dicts, `Global`s and `Instance`s.

    An `Instance` that occurs twice is one object in the pickle.

    Example:
        >>> interpret(to_pickle({"size": (1, None), "kind": Global("numpy", "int8")}))
        {'size': (1, None), 'kind': Global(module='numpy', name='int8', known=True)}
    """
    memo: dict[int, int] = {}
    return b"\x80\x02" + _opcodes(value, memo) + b"."


def _opcodes(value: Any, memo: dict[int, int]) -> bytes:  # noqa: PLR0911 - one for each kind
    """Return the opcodes that push a value."""
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
            return b"(" + b"".join(_opcodes(item, memo) for item in value) + b"t"
        case Global():
            return f"c{value.module}\n{value.name}\n".encode()
        case dict():
            begin = _opcodes(Global("collections", "OrderedDict"), memo) + b")R" if isinstance(value, OrderedDict) else b"}"
            items = (_opcodes(key, memo) + _opcodes(item, memo) for key, item in value.items())
            return begin + b"(" + b"".join(items) + b"u"
        case Instance():
            return _instance_opcodes(value, memo)
    msg = f"{kind_of(value)} cannot be pickled"
    raise TypeError(msg)


def _instance_opcodes(instance: Instance, memo: dict[int, int]) -> bytes:
    """Return the opcodes of an object, or of a reference to it if it was written before."""
    if id(instance) in memo:
        return b"j" + memo[id(instance)].to_bytes(4, "little")
    state = b"" if instance.state is None else _opcodes(instance.state, memo) + b"b"
    memo[id(instance)] = len(memo)
    begin = _opcodes(instance.kind, memo) + _opcodes(instance.parts, memo) + b"\x81"
    return begin + b"r" + memo[id(instance)].to_bytes(4, "little") + state
