"""The machine that runs the opcodes of a pickle: a stack, marks on it, a memo, and a position in the data.

Names and calls are looked up in a given table of harmless functions, never in Python. The machine checks the limits: reading
never costs more than the pickle is large.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import numpy as np

from penstock.errors import DataError

__all__ = ["Global", "Instance", "Machine", "Names", "PickleProblem", "kind_of", "old_bytes", "old_text", "printable"]

MAX_LINE = 1 << 20
MAX_DIGITS = 20
MAX_DECIMAL_KEYS = 4_096
"""A pickle can choose decimals with equal hashes, so that each key is compared with all others."""

KEYS = (str, bytes, int, bool, float, type(None))
INTEGER = re.compile(rb"[+-]?\d+")


class PickleProblem(DataError):  # noqa: N818 - a part of the error for the user
    """The problem of a pickle, as a part of an error message.

    Example:
        >>> issubclass(PickleProblem, DataError)
        True
    """


@dataclass(frozen=True, slots=True)
class Global:
    """A name in a pickle. It is never imported.

    Attributes:
        module: The module.
        name: The name in the module.
        known: Whether it is in the table of names; otherwise it may be a class of a user.
    """

    module: str
    name: str
    known: bool = True

    def __str__(self) -> str:
        """Return the whole name."""
        return f"{self.module}.{self.name}"


@dataclass(slots=True, repr=False)
class Instance:
    """An object in a pickle: the name of its class, its constructor arguments, and its state."""

    kind: Global
    parts: tuple[Any, ...] = ()
    state: Any = None

    def __repr__(self) -> str:
        """Return the class only: the state may contain the object itself."""
        return f"Instance({self.kind})"


class Names(Protocol):
    """The table of names."""

    def find(self, module: str, name: str) -> Global:
        """Return the entry of a name."""

    def make(self, kind: Any, parts: tuple[Any, ...]) -> Any:
        """Return an object of a class without a state."""

    def call(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Return the result of a function."""

    def build(self, instance: Any, state: Any) -> None:
        """Set the state of an object."""


def kind_of(value: object) -> str:
    """Return a description of a value for a message, without the value, whose text could be endless.

    Example:
        >>> kind_of([1, 2]), kind_of(Instance(Global("numpy", "int8")))
        ('a list', 'a numpy.int8')
    """
    if isinstance(value, Instance):
        return f"a {printable(value.kind)}"
    if isinstance(value, Global):
        return f"the name {printable(value)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def printable(name: Global) -> str:
    """Return a name for a message, shortened and escaped."""
    text = str(name)
    return text if len(text) <= 200 and text.isprintable() else ascii(text[:200])  # noqa: PLR2004 - fits in a message


class Machine:
    """The stack, the memo, and the position in a pickle.

    Attributes:
        data: The pickle.
        names: The table of names.
        at: The position of the next byte.
        begin: The position of the current opcode.
        stack: The values.
        marks: The size of the stack at each mark.
        memo: Values by their numbers in the pickle.
    """

    def __init__(self, data: bytes, names: Names) -> None:
        """Start at the first byte."""
        self.data, self.names = data, names
        self.at = self.begin = self.decimals = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        """Push a value."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Remove the last value after the last mark, and return it."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise PickleProblem("it takes a value from its stack, and there is none")
        return self.stack.pop()

    def pop_many(self, size: int) -> list[Any]:
        """Remove the last values after the last mark, and return them."""
        start = len(self.stack) - size
        if start < (self.marks[-1] if self.marks else 0):
            raise PickleProblem("it takes values from its stack, and there are fewer")
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def pop_marked(self) -> list[Any]:
        """Remove the last mark and the values after it, and return the values."""
        if not self.marks:
            raise PickleProblem("it refers to a mark, and there is none")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def top(self) -> Any:
        """Return the last value without removing it."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise PickleProblem("it refers to the last value on its stack, and there is none")
        return self.stack[-1]

    def container(self, *kinds: type) -> Any:
        """Return the last value, a container of one of some types."""
        target = self.top()
        if type(target) not in kinds:
            raise PickleProblem(f"it puts values into {kind_of(target)}, and a {kinds[0].__name__} was expected")
        return target

    def arguments(self) -> tuple[Any, ...]:
        """Remove the arguments of a call, and return them."""
        values = self.pop()
        if type(values) is not tuple:
            raise PickleProblem(f"it makes something of {kind_of(values)}, and a tuple was expected")
        return values

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        remaining = len(self.data) - self.at
        if size > remaining:
            raise PickleProblem(f"{size} bytes are said to follow, and there are {remaining}")
        self.at += size
        return self.data[self.at - size : self.at]

    def sized(self, width: int) -> bytes:
        """Return bytes with their length before them."""
        return self.take(self.number(width))

    def number(self, width: int) -> int:
        """Return an unsigned integer of `width` bytes."""
        return int.from_bytes(self.take(width), "little")

    def line(self) -> bytes:
        """Return the rest of the line."""
        end = self.data.find(b"\n", self.at, self.at + MAX_LINE)
        if end < 0:
            raise PickleProblem("a line does not end where it should")
        text = self.data[self.at : end]
        self.at = end + 1
        return text

    def digits(self) -> int:
        """Return the integer of a line."""
        text = self.line().removesuffix(b"L")
        if len(text) > MAX_DIGITS or not INTEGER.fullmatch(text):
            raise PickleProblem(f"a whole number of at most {MAX_DIGITS} digits was expected, and there is {text[:40]!r}")
        return int(text)

    def key(self, value: Any) -> Any:
        """Check that a value can be a key: hashing it must not cost more than it is large."""
        if type(value) in KEYS or (isinstance(value, np.generic) and not isinstance(value, np.complexfloating)):
            return value
        self.decimals += type(value) is Decimal
        if type(value) is not Decimal or self.decimals > MAX_DECIMAL_KEYS:
            described = f"more than {MAX_DECIMAL_KEYS} decimals" if type(value) is Decimal else kind_of(value)
            raise PickleProblem(f"{described} stands where a key or an item of a set does. Single values were expected there")
        return value

    def text(self, value: Any) -> str:
        """Check that a value is a name."""
        if type(value) is not str or len(value) > MAX_LINE:
            raise PickleProblem(f"{kind_of(value)} stands where a name does")
        return value


def old_text(raw: bytes) -> str:
    """Return the text of a Python 2 string, which may be any bytes; `old_bytes` returns these bytes."""
    return raw.decode("utf-8", "surrogateescape")


def old_bytes(text: str) -> bytes:
    r"""Return the bytes of a Python 2 string.

    Example:
        >>> old_bytes(old_text(b"\xff\x00a"))
        b'\xff\x00a'
    """
    return text.encode("utf-8", "surrogateescape")
