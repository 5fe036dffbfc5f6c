"""Messages between two processes: a line of JSON, bytes that are not JSON, and open files. Data goes another way."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

__all__ = ["Channel", "Message"]

HEAD = Struct("<QQ")

MOST_FILES = 128
"""Files of one message; systems allow some more."""

AT_ONCE = 1 << 14
"""Bytes that are asked for at once; most messages are shorter."""

_NUMBER = Struct("i")
_ROOM_FOR_FILES = socket.CMSG_SPACE(MOST_FILES * _NUMBER.size) if hasattr(socket, "CMSG_SPACE") else 0
_AS_TEXT = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


class Message(NamedTuple):
    """What the other end has sent.

    Attributes:
        told: The JSON.
        more: The bytes.
        files: Descriptors of files, which now belong to whoever got them.
    """

    told: dict[str, Any]
    more: bytes
    files: list[int]


class Channel:
    """One end of a pair of sockets.

    Example:
        >>> here, there = (Channel(end) for end in socket.socketpair())
        >>> here.send({"task": 7}, b"more")
        >>> there.receive()
        Message(told={'task': 7}, more=b'more', files=[])
        >>> here.close()
        >>> there.receive() is None
        True
        >>> there.close()
    """

    def __init__(self, end: socket.socket) -> None:
        """Store the socket, which belongs to the channel from now on."""
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._sending = threading.RLock()
        self._read = b""
        self._files: deque[int] = deque()

    def send(self, told: Mapping[str, Any], more: bytes = b"", files: Sequence[int] = ()) -> None:
        """Send a message. One that comes with files tells of each of them under "files".

        Raises:
            OSError: If there is nobody to get it.
        """
        text = _AS_TEXT(told).encode()
        head = HEAD.pack(len(text), len(more))
        with self._sending:
            if files:
                socket.send_fds(self._socket, [head], list(files))
                head = b""
            self._socket.sendall(b"".join((head, text, more)))

    def waits(self, seconds: float) -> bool:
        """Return whether something has come, or the other end has gone, within so many seconds."""
        return bool(self._read) or bool(self._poll.poll(seconds * 1000))

    def receive(self) -> Message | None:
        """Return the next message, waiting for it; None where the other end has gone."""
        head = self._bytes(HEAD.size)
        if head is None:
            return None
        text, more = HEAD.unpack(head)
        found = self._bytes(text + more)
        if found is None:
            return None
        told = json.loads(found[:text])
        files = [self._files.popleft() for _ in told.get("files", ())]
        return Message(told, found[text:], files)

    def end(self) -> None:
        """Tell the other end that nothing more will come; what it sends still arrives."""
        with contextlib.suppress(OSError):  # it has gone already
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    def _bytes(self, count: int) -> bytes | None:
        """Return the next so many bytes; None where the other end has gone."""
        while len(self._read) < count:
            try:
                got, others, _, _ = self._socket.recvmsg(max(AT_ONCE, count - len(self._read)), _ROOM_FOR_FILES)
            except ConnectionError:
                return None
            for _, _, numbers in others:
                for (file,) in _NUMBER.iter_unpack(numbers[: len(numbers) // _NUMBER.size * _NUMBER.size]):
                    os.set_inheritable(file, False)  # noqa: FBT003 - its only form
                    self._files.append(file)
            if not got:
                return None
            self._read = self._read + got if self._read else got
        found, self._read = self._read[:count], self._read[count:]
        return found
