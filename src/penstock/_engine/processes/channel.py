"""Control messages between two processes: JSON, a pickled error, and open files. Batches are in shared memory."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

import cloudpickle

from penstock.errors import WorkerError

HEAD = Struct("<QQ")

MAX_FILES = 128
"""Files of one message; systems allow more."""

RECEIVE_BYTES = 1 << 14
"""Bytes that are received at once; most messages are shorter."""

_NUMBER = Struct("i")
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_FILES * _NUMBER.size) if hasattr(socket, "CMSG_SPACE") else 0
_as_json = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


class Message(NamedTuple):
    """A message of the other end.

    Attributes:
        content: The JSON.
        more: The bytes that are not JSON.
        files: Descriptors of files, which the receiver closes.
    """

    content: dict[str, Any]
    more: bytes
    files: list[int]


class Channel:
    """One end of a pair of sockets.

    Example:
        >>> first, second = (Channel(end) for end in socket.socketpair())
        >>> first.send({"task": 7}, b"more")
        >>> second.receive()
        Message(content={'task': 7}, more=b'more', files=[])
        >>> first.close()
        >>> second.receive() is None
        True
        >>> second.close()
    """

    def __init__(self, end: socket.socket) -> None:
        """Store the socket, which the channel closes."""
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._sending = threading.RLock()
        self._received = b""
        self._files: deque[int] = deque()

    def send(self, content: Mapping[str, Any], more: bytes = b"", files: Sequence[int] = ()) -> None:
        """Send a message. If it has files, its JSON has an entry for each of them under "files"."""
        text = _as_json(content).encode()
        head = HEAD.pack(len(text), len(more))
        with self._sending:
            if files:
                socket.send_fds(self._socket, [head], list(files))
                head = b""
            self._socket.sendall(b"".join((head, text, more)))

    def wait(self, seconds: float) -> bool:
        """Return whether a message has arrived, or the other end has closed, within so many seconds."""
        return bool(self._received) or bool(self._poll.poll(seconds * 1000))

    def receive(self) -> Message | None:
        """Wait for the next message and return it; None if the other end has closed."""
        head = self._read(HEAD.size)
        if head is None:
            return None
        text, more = HEAD.unpack(head)
        body = self._read(text + more)
        if body is None:
            return None
        content = json.loads(body[:text])
        return Message(content, body[text:], [self._files.popleft() for _ in content.get("files", ())])

    def end(self) -> None:
        """Stop sending. What the other end sends still arrives."""
        with contextlib.suppress(OSError):  # the other end has closed already
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _read(self, count: int) -> bytes | None:
        """Return the next so many bytes; None if the other end has closed."""
        while len(self._received) < count:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(max(RECEIVE_BYTES, count - len(self._received)), _ANCILLARY_BYTES)
            except ConnectionError:
                return None
            for _, _, numbers in ancillary:
                for (file,) in _NUMBER.iter_unpack(numbers[: len(numbers) // _NUMBER.size * _NUMBER.size]):
                    os.set_inheritable(file, False)  # noqa: FBT003 - its only form
                    self._files.append(file)
            if not data:
                return None
            self._received = self._received + data if self._received else data
        data, self._received = self._received[:count], self._received[count:]
        return data


def pack_error(error: BaseException) -> bytes:
    """Return an error as a pickle, with the text of its traceback."""
    where = f"In process {os.getpid()}:\n{''.join(traceback.format_exception(error)).rstrip()}"
    by_parts = (type(error), error.args, error.__dict__)  # for a class that cannot be called with its own arguments
    for function, arguments in ((_same, (error,)), (_rebuild, by_parts)):
        with contextlib.suppress(Exception):  # it may hold anything, and pickling runs what it holds
            packed: bytes = cloudpickle.dumps((function, arguments, where))
            rebuild, unpacked, _ = cloudpickle.loads(packed)
            rebuild(*unpacked)
            return packed
    described: bytes = cloudpickle.dumps((_unknown, (f"{type(error).__qualname__}: {error}",), where))
    return described


def unpack_error(packed: bytes) -> BaseException:
    """Return an error that another process has packed; the traceback there is its note."""
    try:
        function, arguments, where = cloudpickle.loads(packed)
        error: BaseException = function(*arguments)
    except Exception as problem:  # noqa: BLE001 - a class that can be unpickled there and not here
        return _unknown(f"an error that cannot be unpickled here ({problem})")
    error.add_note(where)
    return error


def _same(error: BaseException) -> BaseException:
    return error


def _rebuild(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def _unknown(description: str) -> BaseException:
    return WorkerError(
        f"A process raised {description}. An error that can be pickled would have come with its own type. "
        "See below where it was raised."
    )
