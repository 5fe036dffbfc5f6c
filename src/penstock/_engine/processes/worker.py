"""A process that decodes batches and runs maps: `python -m penstock._engine.processes.worker`, as `pool` starts it.

It ends when its parent asks for it, and when its parent has ended in any way.
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
from penstock._engine.processes.channel import Channel, pack_error
from penstock._engine.processes.serialize import unpack
from penstock._engine.processes.shared_memory import SECOND_END, Block, SharedMemory
from penstock._engine.processes.task import BatchWorker, pack_output
from penstock._engine.query.query import raised_by_map
from penstock.errors import WorkerError

POLL_SECONDS = 2.0
"""Seconds between two checks that the parent is alive."""


def main() -> None:
    """Work on the tasks of the parent until it closes the channel."""
    control, file, life, parent = (int(argument) for argument in sys.argv[1:5])
    for descriptor in (control, file, life):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - its only form; a process that a map starts must not keep them open
    _end_with(parent, life)
    channel = Channel(socket.socket(fileno=control))
    message = channel.receive()
    if message is None:
        return
    _set_up(message.content)
    memory = SharedMemory(file, first=SECOND_END)
    try:
        worker = BatchWorker(cloudpickle.loads(memory.read(message.content["recipe"]).tobytes()))
    except BaseException as error:  # noqa: BLE001 - it is raised where the first batch is requested
        channel.send({"begun": False}, pack_error(error))
        return
    channel.send({"begun": True})
    _serve(channel, worker, memory)


def _end_with(parent: int, life: int) -> None:
    """End this process when its parent ends, whatever it does at that moment."""
    # Ctrl-C in the terminal is for the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # A signal ends even a function that never releases the interpreter's lock.
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        poll = select.poll()
        poll.register(life, select.POLLIN)
        # A fork of the parent may keep the other end open, so the parent's process id is checked too.
        while not poll.poll(POLL_SECONDS * 1000) and os.getppid() == parent:
            pass
        os._exit(1)

    threading.Thread(target=watch, name="penstock-watch", daemon=True).start()


def _set_up(parent: Mapping[str, Any]) -> None:
    """Take over the module path, the arguments and the environment of the parent."""
    sys.path[:], sys.argv[:] = parent["path"], parent["argv"]
    for name, value in parent["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _serve(channel: Channel, worker: BatchWorker, memory: SharedMemory) -> None:
    """Reply to each task."""
    files: dict[int, LocalFile] = {}
    while (message := channel.receive()) is not None:
        content = message.content
        for number in content.get("closed", ()):
            files.pop(number, None)
        if "files" in content:
            opened = zip(content["files"], content["paths"], message.files, strict=True)
            files.update({number: LocalFile(path, descriptor) for number, path, descriptor in opened})
            continue
        memory.take_back(content["released"])
        blocks, error = _run(content, worker, memory, files)
        with contextlib.suppress(OSError, ValueError):  # a stream that a map has closed
            sys.stdout.flush()
            sys.stderr.flush()
        reply = {"blocks": blocks, "released": memory.released(), "busy": worker.taken()}
        try:
            channel.send(reply, error)
        except ConnectionError:  # the parent has ended
            return


def _run(
    task: Mapping[str, Any], worker: BatchWorker, memory: SharedMemory, files: Mapping[int, LocalFile]
) -> tuple[list[Block], bytes]:
    """Return the blocks of a task's result, and the error that was raised as a pickle."""
    try:
        output = worker.run(unpack([memory.read(block) for block in task["blocks"]]), files)
        blocks = [memory.write(block) for block in pack_output(output, worker.recipe.query)]
        return blocks, b"" if output.error is None else pack_error(output.error)
    except Exception as error:  # noqa: BLE001 - it is raised where the batch is requested
        return [], pack_error(error)
    except BaseException as error:  # noqa: BLE001 - of its own type it would end the parent
        name = raised_by_map(error)
        during = worker.recipe if name is None else f"map {name}"
        msg = (
            f"Process {os.getpid()} was asked to end during {during}, on {task['where']}: {error!r} was raised there. "
            "A function must return or raise an error that tells what is wrong."
        )
        problem = WorkerError(msg)
        problem.__cause__ = error
        return [], pack_error(problem)


if __name__ == "__main__":
    main()
