"""A process that decodes batches and runs maps: `python -m penstock._engine.processes.worker`, as `pool` starts it.

It ends when its parent says so, and when its parent has ended in whatever way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

import cloudpickle

from penstock._engine.parquet.file_blobs import LocalFile
from penstock._engine.processes.channel import Channel
from penstock._engine.processes.errors import pack_error
from penstock._engine.processes.serialize import Parcel
from penstock._engine.processes.shared_memory import APART, SharedMemory
from penstock._engine.processes.task import BatchWorker
from penstock._engine.query.values import raised_by_map
from penstock.errors import WorkerError

__all__ = ["main"]

LOOK = 2.0
"""Seconds between two looks at whether the parent is still there."""


def main() -> None:
    """Do what the parent asks for, until it asks for nothing more."""
    control, file, life, parent = (int(given) for given in sys.argv[1:5])
    for descriptor in (control, file, life):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - its only form; or a process that a map starts would keep them open
    _end_with(parent, life)
    channel = Channel(socket.socket(fileno=control))
    begun = channel.receive()
    if begun is None:
        return
    _be_like(begun.told)
    mapped = SharedMemory(file, first=APART)
    first, room, size = begun.told["recipe"]
    try:
        bench = BatchWorker(cloudpickle.loads(mapped.read((first, room), size).tobytes()))
    except BaseException as error:  # noqa: BLE001 - it is raised where the first batch is asked for
        channel.send({"begun": False}, pack_error(error))
        return
    channel.send({"begun": True})
    _serve(channel, bench, mapped)


def _end_with(parent: int, life: int) -> None:
    """End this process when its parent does, whatever it is doing then."""
    # The terminal's Ctrl-C is the parent's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # A signal ends even a function that never lets go of the interpreter.
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        ended = select.poll()
        ended.register(life, select.POLLIN)
        # A process that the parent has forked may hold the other end open, so that is not all that is looked at.
        while not ended.poll(LOOK * 1000) and os.getppid() == parent:
            pass
        os._exit(1)

    threading.Thread(target=watch, name="penstock-watch", daemon=True).start()


def _be_like(parent: Mapping[str, Any]) -> None:
    """Find modules where the parent does, and see what it sees."""
    sys.path[:], sys.argv[:] = parent["path"], parent["argv"]
    for name, value in parent["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _serve(channel: Channel, bench: BatchWorker, mapped: SharedMemory) -> None:
    """Answer each task with what became of it."""
    files: dict[int, LocalFile] = {}
    while (message := channel.receive()) is not None:
        told = message.told
        for number in told.get("closed", ()):
            files.pop(number, None)
        if "files" in told:
            opened = zip(told["files"], told["paths"], message.files, strict=True)
            files.update({number: LocalFile(path, descriptor) for number, path, descriptor in opened})
            continue
        mapped.take_back(told["back"])
        answer, more = _answered(told, bench, mapped, files)
        del message, told
        with contextlib.suppress(OSError, ValueError):  # a stream that a map has closed
            sys.stdout.flush()
            sys.stderr.flush()
        try:
            channel.send({**answer, "back": mapped.let_go(), "took": bench.took()}, more)
        except ConnectionError:  # nobody waits for it any more
            return


def _answered(
    told: Mapping[str, Any], bench: BatchWorker, mapped: SharedMemory, files: Mapping[int, LocalFile]
) -> tuple[Any, bytes]:
    """Return what is answered to a task."""
    try:
        memory = [mapped.read((first, room), size) for first, room, size in told["blocks"]]
        made, parcel, failed = bench.make(told, memory, files)
        del memory
        return {**made, "blocks": _written(mapped, parcel)}, b"" if failed is None else pack_error(failed)
    except Exception as error:  # noqa: BLE001 - it is raised where the batch is asked for
        return {}, pack_error(error)
    except BaseException as error:  # noqa: BLE001 - the same, told otherwise: it would end the parent
        name = raised_by_map(error)
        during = bench.told if name is None else f"map {name}"
        msg = (
            f"Process {os.getpid()} was asked to end during {during}, on {told['where']}: {error!r} was raised there. "
            "A function must return or raise an error that tells what is wrong."
        )
        told_error = WorkerError(msg)
        told_error.__cause__ = error
        return {}, pack_error(told_error)


def _written(mapped: SharedMemory, parcel: Parcel) -> list[tuple[int, int, int]]:
    return [(*mapped.write(buffers, size), size) for buffers, size in parcel.blocks]


if __name__ == "__main__":
    main()
