"""The machine that a pickle is a program for: a stack, marks on it, a memo, and what the program has still to say.

What a name stands for, and what a call of it gives, is not looked up in Python but in a table that is handed in, whose every
entry is inert. The machine keeps the limits: what is read of a pickle never costs more than was written of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import numpy as np

from penstock.errors import DataError

__all__ = ["Global", "Instance", "Machine", "Names", "PickleProblem", "kind_of", "old_bytes", "old_text", "shown"]

MOST_LINE = 1 << 20
MOST_DIGITS = 20
MOST_DECIMAL_KEYS = 4_096
"""Keys whose hashes a pickle can make equal, so that each is compared with all before it."""

KEYS = (str, bytes, int, bool, float, type(None))
INTEGER = re.compile(rb"[+-]?\d+")


class PickleProblem(DataError):  # noqa: N818 - a part of the error that the user gets
    """What is wrong with a pickle: not told where it lies, nor what to do.

    Example:
        >>> issubclass(PickleProblem, DataError)
        True
    """


@dataclass(frozen=True, slots=True)
class Global:
    """A name that a pickle refers to. It stands for itself: nothing of that name is imported.

    Attributes:
        module: The module it names.
        name: The name in there.
        known: Whether the table has it; else it may be a class of the user's own.
    """

    module: str
    name: str
    known: bool = True

    def __str__(self) -> str:
        """Return the whole name."""
        return f"{self.module}.{self.name}"


@dataclass(slots=True, repr=False)
class Instance:
    """What a pickle calls an object: the name of its class, what it was made of, and its state."""

    kind: Global
    parts: tuple[Any, ...] = ()
    state: Any = None

    def __repr__(self) -> str:
        """Return the class alone: the rest may hold itself."""
        return f"Instance({self.kind})"


class Names(Protocol):
    """What the names in a pickle stand for."""

    def find(self, module: str, name: str) -> Global:
        """Return what a name stands for."""
        ...

    def make(self, kind: Any, parts: tuple[Any, ...]) -> Any:
        """Return an object of a class, made of some parts and without a state."""
        ...

    def call(self, function: Any, given: tuple[Any, ...]) -> Any:
        """Return what a function gives."""
        ...

    def build(self, made: Any, state: Any) -> None:
        """Give an object its state."""
        ...


def kind_of(value: object) -> str:
    """Return what a value is, for a message; never the value itself, whose text could be endless.

    Example:
        >>> kind_of([1, 2]), kind_of(Instance(Global("numpy", "int8")))
        ('a list', 'a numpy.int8')
    """
    if isinstance(value, Instance):
        return f"a {shown(value.kind)}"
    if isinstance(value, Global):
        return f"the name {shown(value)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def shown(name: Global) -> str:
    """Return a name for a message, which may be anything."""
    text = str(name)
    return text if len(text) <= 200 and text.isprintable() else ascii(text[:200])  # noqa: PLR2004 - what fits in a message


class Machine:
    """The stack, the memo, and how far the pickle has been read.

    Attributes:
        data: The pickle.
        names: What the names in it stand for.
        at: Where the next byte lies.
        begin: Where the opcode lies that is carried out.
        stack: The values.
        marks: How many there were when each mark was set.
        memo: Values that the pickle refers to by a number.
    """

    def __init__(self, data: bytes, names: Names) -> None:
        """Begin at the first byte."""
        self.data, self.names = data, names
        self.at = self.begin = self.decimals = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Return the last value, of those after the last mark."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise PickleProblem("it takes a value from its stack, and there is none")
        return self.stack.pop()

    def last(self, size: int) -> list[Any]:
        """Return so many of the last values, of those after the last mark, and forget them."""
        start = len(self.stack) - size
        if start < (self.marks[-1] if self.marks else 0):
            raise PickleProblem("it takes values from its stack, and there are fewer")
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def marked(self) -> list[Any]:
        """Return the values after the last mark, and forget them and it."""
        if not self.marks:
            raise PickleProblem("it refers to a mark, and there is none")
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def top(self) -> Any:
        """Return the last value without taking it."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise PickleProblem("it refers to the last value on its stack, and there is none")
        return self.stack[-1]

    def into(self, *kinds: type) -> Any:
        """Return the last value, into which others go, and which must be of one of some types."""
        found = self.top()
        if type(found) not in kinds:
            raise PickleProblem(f"it puts values into {kind_of(found)}, and a {kinds[0].__name__} was expected")
        return found

    def parts(self) -> tuple[Any, ...]:
        """Return the values that something is made of, or called with."""
        found = self.pop()
        if type(found) is not tuple:
            raise PickleProblem(f"it makes something of {kind_of(found)}, and a tuple was expected")
        return found

    def take(self, size: int) -> bytes:
        """Return so many bytes of the pickle."""
        left = len(self.data) - self.at
        if size > left:
            raise PickleProblem(f"{size} bytes are said to follow, and there are {left}")
        self.at += size
        return self.data[self.at - size : self.at]

    def sized(self, width: int) -> bytes:
        """Return bytes whose number stands before them."""
        return self.take(self.number(width))

    def number(self, width: int) -> int:
        """Return a number of so many bytes."""
        return int.from_bytes(self.take(width), "little")

    def line(self) -> bytes:
        """Return the bytes up to the end of a line."""
        end = self.data.find(b"\n", self.at, self.at + MOST_LINE)
        if end < 0:
            raise PickleProblem("a line does not end where it should")
        found = self.data[self.at : end]
        self.at = end + 1
        return found

    def digits(self) -> int:
        """Return the number that a line holds."""
        text = self.line().removesuffix(b"L")
        if len(text) > MOST_DIGITS or not INTEGER.fullmatch(text):
            raise PickleProblem(f"a whole number of at most {MOST_DIGITS} digits was expected, and there is {text[:40]!r}")
        return int(text)

    def key(self, value: Any) -> Any:
        """Return a value that is hashed, whose hash must not cost more than it took to write."""
        if type(value) in KEYS or (isinstance(value, np.generic) and not isinstance(value, np.complexfloating)):
            return value
        self.decimals += type(value) is Decimal
        if type(value) is not Decimal or self.decimals > MOST_DECIMAL_KEYS:
            told = f"more than {MOST_DECIMAL_KEYS} decimals" if type(value) is Decimal else kind_of(value)
            raise PickleProblem(f"{told} stands where a key or an item of a set does. Single values were expected there")
        return value

    def text(self, value: Any) -> str:
        """Return a value that is a name."""
        if type(value) is not str or len(value) > MOST_LINE:
            raise PickleProblem(f"{kind_of(value)} stands where a name does")
        return value


def old_text(raw: bytes) -> str:
    """Return what Python 2 called text, which may be any bytes: `old_bytes` gives them back."""
    return raw.decode("utf-8", "surrogateescape")


def old_bytes(text: str) -> bytes:
    r"""Return the bytes that Python 2 called text.

    Example:
        >>> old_bytes(old_text(b"\xff\x00a"))
        b'\xff\x00a'
    """
    return text.encode("utf-8", "surrogateescape")
