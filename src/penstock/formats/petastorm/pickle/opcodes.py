"""The functions of the opcodes of protocols 0 to 5 that a dataset of Petastorm may have."""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.formats.petastorm.pickle.machine import Machine, PickleProblem, old_text

__all__ = ["REFUSED", "STEPS", "STOP"]

MAX_MARKS = 1_000
MAX_INTEGER_BYTES = 9
NEWEST_PROTOCOL = 5
ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([\\'\"ntr])|())")
ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}

Step: TypeAlias = Callable[[Machine], None]
"""The function of an opcode."""


def _constant(value: Any) -> Step:
    return lambda machine: machine.push(value)


def _integer(width: int) -> Step:
    return lambda machine: machine.push(machine.number(width))


def _signed(machine: Machine) -> None:
    machine.push(int.from_bytes(machine.take(4), "little", signed=True))


def _long(width: int) -> Step:
    def step(machine: Machine) -> None:
        size = machine.number(width)
        if size > MAX_INTEGER_BYTES:
            raise PickleProblem(f"a whole number has {size} bytes, and {MAX_INTEGER_BYTES} are read at most")
        machine.push(int.from_bytes(machine.take(size), "little", signed=True))

    return step


def _int_line(machine: Machine) -> None:
    start = machine.at
    if machine.data[start : start + 3] in (b"00\n", b"01\n"):  # how the oldest protocols write False and True
        machine.push(machine.line() == b"01")
    else:
        machine.push(machine.digits())


def _float_line(machine: Machine) -> None:
    machine.push(float(machine.line()[:64]))


def _float(machine: Machine) -> None:
    machine.push(struct.unpack(">d", machine.take(8))[0])


def _bytes(width: int) -> Step:
    return lambda machine: machine.push(machine.sized(width))


def _text(width: int) -> Step:
    return lambda machine: machine.push(machine.sized(width).decode("utf-8", "surrogatepass"))


def _text_line(machine: Machine) -> None:
    machine.push(machine.line().decode("raw_unicode_escape"))


def _old_text(width: int) -> Step:
    return lambda machine: machine.push(old_text(machine.sized(width)))


def _old_text_line(machine: Machine) -> None:
    """Push a quoted text of Python 2."""
    line = machine.line().strip()
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:  # noqa: PLR2004 - two quotes
        raise PickleProblem("a text has no quotes around it")
    machine.push(old_text(ESCAPE.sub(_unescape, line[1:-1])))


def _unescape(match: re.Match[bytes]) -> bytes:
    if match[1] is not None:
        return bytes([int(match[1], 16)])
    if match[2] is None:
        raise PickleProblem("a text has a backslash that stands for nothing")
    return ESCAPED.get(match[2], match[2])


def _list(machine: Machine) -> None:
    machine.push(machine.pop_marked())


def _append(machine: Machine) -> None:
    value = machine.pop()
    machine.container(list).append(value)


def _extend(machine: Machine) -> None:
    values = machine.pop_marked()
    machine.container(list).extend(values)


def _tuple(machine: Machine) -> None:
    machine.push(tuple(machine.pop_marked()))


def _tuple_of(size: int) -> Step:
    def step(machine: Machine) -> None:
        machine.push(tuple(machine.pop_many(size)))

    return step


def _dict(machine: Machine) -> None:
    values = machine.pop_marked()
    machine.push({})
    _fill(machine, values)


def _set_item(machine: Machine) -> None:
    value, key = machine.pop(), machine.pop()
    _fill(machine, [key, value])


def _set_items(machine: Machine) -> None:
    _fill(machine, machine.pop_marked())


def _fill(machine: Machine, values: list[Any]) -> None:
    """Add alternating keys and values to the dict on the stack."""
    target = machine.container(dict, OrderedDict)
    if len(values) % 2:
        raise PickleProblem("a key has no value")
    for at in range(0, len(values), 2):
        target[machine.key(values[at])] = values[at + 1]


def _add_items(machine: Machine) -> None:
    values = [machine.key(value) for value in machine.pop_marked()]
    machine.container(set).update(values)


def _frozen_set(machine: Machine) -> None:
    machine.push(frozenset([machine.key(value) for value in machine.pop_marked()]))


def _mark(machine: Machine) -> None:
    if len(machine.marks) >= MAX_MARKS:
        raise PickleProblem(f"values lie more than {MAX_MARKS} deep in each other")
    machine.marks.append(len(machine.stack))


def _drop(machine: Machine) -> None:
    """Drop the last value, or the last mark if no value is after it."""
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.pop()


def _drop_marked(machine: Machine) -> None:
    machine.pop_marked()


def _duplicate(machine: Machine) -> None:
    machine.push(machine.top())


def _get(machine: Machine, number: int) -> None:
    if number not in machine.memo:
        raise PickleProblem(f"it refers to value {number} of its memo, which has none of that number")
    machine.push(machine.memo[number])


def _put(machine: Machine, number: int) -> None:
    machine.memo[number] = machine.top()


def _proto(machine: Machine) -> None:
    protocol = machine.number(1)
    if protocol > NEWEST_PROTOCOL:
        raise PickleProblem(
            f"it is of protocol {protocol}, and those up to {NEWEST_PROTOCOL} are known; a newer Penstock may read it"
        )


def _frame(machine: Machine) -> None:
    size = machine.number(8)
    if size > len(machine.data) - machine.at:
        raise PickleProblem(f"{size} bytes are said to follow, and there are {len(machine.data) - machine.at}")


def _global(machine: Machine) -> None:
    module, name = machine.line().decode(), machine.line().decode()
    machine.push(machine.names.find(module, name))


def _stack_global(machine: Machine) -> None:
    name, module = machine.text(machine.pop()), machine.text(machine.pop())
    machine.push(machine.names.find(module, name))


def _reduce(machine: Machine) -> None:
    arguments = machine.arguments()
    machine.push(machine.names.call(machine.pop(), arguments))


def _new(machine: Machine) -> None:
    arguments = machine.arguments()
    machine.push(machine.names.make(machine.pop(), arguments))


def _new_with_names(machine: Machine) -> None:
    if machine.pop() != {}:
        raise PickleProblem("it makes something of parts with names, which nothing known has")
    _new(machine)


def _old_instance(machine: Machine) -> None:
    kind = machine.names.find(machine.line().decode(), machine.line().decode())
    machine.push(machine.names.make(kind, tuple(machine.pop_marked())))


def _old_object(machine: Machine) -> None:
    kind, *arguments = machine.pop_marked()
    machine.push(machine.names.make(kind, tuple(arguments)))


def _build(machine: Machine) -> None:
    state = machine.pop()
    machine.names.build(machine.top(), state)


STOP = ord(".")
STEPS: dict[int, Step] = {
    code[0]: step
    for code, step in {
        # Single values.
        b"N": _constant(None),
        b"\x88": _constant(True),  # noqa: FBT003 - the value of the opcode
        b"\x89": _constant(False),  # noqa: FBT003 - the value of the opcode
        b"I": _int_line,
        b"L": lambda machine: machine.push(machine.digits()),
        b"J": _signed,
        b"K": _integer(1),
        b"M": _integer(2),
        b"\x8a": _long(1),
        b"\x8b": _long(4),
        b"F": _float_line,
        b"G": _float,
        b"S": _old_text_line,
        b"T": _old_text(4),
        b"U": _old_text(1),
        b"V": _text_line,
        b"\x8c": _text(1),
        b"X": _text(4),
        b"\x8d": _text(8),
        b"C": _bytes(1),
        b"B": _bytes(4),
        b"\x8e": _bytes(8),
        # Containers.
        b")": _constant(()),
        b"t": _tuple,
        b"\x85": _tuple_of(1),
        b"\x86": _tuple_of(2),
        b"\x87": _tuple_of(3),
        b"]": lambda machine: machine.push([]),
        b"l": _list,
        b"a": _append,
        b"e": _extend,
        b"}": lambda machine: machine.push({}),
        b"d": _dict,
        b"s": _set_item,
        b"u": _set_items,
        b"\x8f": lambda machine: machine.push(set()),
        b"\x90": _add_items,
        b"\x91": _frozen_set,
        # The stack and the memo.
        b"(": _mark,
        b"0": _drop,
        b"1": _drop_marked,
        b"2": _duplicate,
        b"g": lambda machine: _get(machine, machine.digits()),
        b"h": lambda machine: _get(machine, machine.number(1)),
        b"j": lambda machine: _get(machine, machine.number(4)),
        b"p": lambda machine: _put(machine, machine.digits()),
        b"q": lambda machine: _put(machine, machine.number(1)),
        b"r": lambda machine: _put(machine, machine.number(4)),
        b"\x94": lambda machine: _put(machine, len(machine.memo)),
        # Names and objects.
        b"c": _global,
        b"\x93": _stack_global,
        b"R": _reduce,
        b"\x81": _new,
        b"\x92": _new_with_names,
        b"i": _old_instance,
        b"o": _old_object,
        b"b": _build,
        b"\x80": _proto,
        b"\x95": _frame,
    }.items()
}
REFUSED = {
    ord("P"): "it refers to an object outside of it (PERSID)",
    ord("Q"): "it refers to an object outside of it (BINPERSID)",
    0x82: "it refers to a registry of the program (EXT1)",
    0x83: "it refers to a registry of the program (EXT2)",
    0x84: "it refers to a registry of the program (EXT4)",
    0x96: "it holds bytes that can be changed (BYTEARRAY8)",
    0x97: "it refers to a buffer outside of it (NEXT_BUFFER)",
    0x98: "it refers to a buffer outside of it (READONLY_BUFFER)",
}
