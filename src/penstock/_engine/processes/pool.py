"""Processes that work on batches: started with the first, ended with the iteration, and told of whatever becomes of them."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock._engine.parquet.file_blobs import LocalFile
from penstock._engine.processes.channel import Channel, Message
from penstock._engine.processes.errors import error_in
from penstock._engine.processes.pickling import dumps_by_value
from penstock._engine.processes.serialize import Memory, Parcel, Told
from penstock._engine.processes.shared_memory import SharedMemory, anonymous_file
from penstock._engine.processes.task import Recipe
from penstock._engine.runtime.threads import ThreadPool
from penstock._engine.runtime.timers import Wait
from penstock.errors import ArgumentError, WorkerError

__all__ = ["ProcessPool", "Reply", "Task"]

PATIENCE = 1.0
"""Seconds that a process which nobody needs any more has to end by itself."""

LOOK = 0.5
"""Seconds between two looks at whether a process that says nothing is still there, and not late."""

FILES_AT_ONCE = 100
"""Files that are sent with one message; systems allow some more."""


_ending = threading.Event()
"""Set when Python begins to end. A thread that goes on with epochs meanwhile would have it wait for ever more processes."""

weakref.finalize(_ending, bool).detach()  # from the first on, Python ends what is to be ended; this comes before that
atexit.register(_ending.set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a process has made of a task.

    Attributes:
        told: What tells of it.
        memory: Its bytes.
        error: What was raised; with single rows, by the row after those that were made.
    """

    told: Told
    memory: Memory
    error: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One batch that a process is to work on.

    Attributes:
        told: What is to be done, and with what.
        parcel: The bytes of it.
        files: Files that cells are in, with their numbers.
        where: Which batch it is, for messages.
        receive: What is called with the reply.
        fail: What is called where there will be none, with the reason; without one, it was dropped.
    """

    told: Mapping[str, Told]
    parcel: Parcel
    files: Mapping[LocalFile, int]
    where: str
    receive: Callable[[Reply], None]
    fail: Callable[[BaseException | None], None]


class _Process:
    """One process, and what it has been given to do."""

    def __init__(self, recipe: bytes, told: str, timeout: float, starting: Wait) -> None:
        """Start it; a clock runs until it, or another, has begun."""
        self._told, self._timeout, self._starting = told, timeout, starting
        self._tasks: deque[Task] = deque()
        self._since, self._coming = 0.0, 0
        self._begun = self._over = self._ending = False
        self._lock, self._sending = threading.RLock(), threading.RLock()
        self._known: weakref.WeakSet[LocalFile] = weakref.WeakSet()
        self._closed: deque[int] = deque()
        ours, theirs = socket.socketpair()
        self._file = anonymous_file()
        life, self._life = os.pipe()
        try:
            self._process = _started(theirs.fileno(), self._file, life)
        except BaseException:
            ours.close()
            os.close(self._file)
            os.close(self._life)
            raise
        finally:
            theirs.close()
            os.close(life)
        self._mapped, self._channel = SharedMemory(self._file), Channel(ours)
        self._send_recipe(recipe)
        self._thread = threading.Thread(target=self._listen, name=f"penstock-process-{self._process.pid}", daemon=True)
        self._thread.start()

    @property
    def load(self) -> int:
        """How many tasks it has, and is about to get."""
        return len(self._tasks) + self._coming

    def expect(self) -> None:
        """Count a task that it is about to get."""
        with self._lock:
            self._coming += 1

    def give(self, task: Task) -> None:
        """Give it a task that it expects; what becomes of that is told to the task.

        Raises:
            WorkerError: If there is no memory for it.
        """
        try:
            self._take(task)
        finally:
            with self._lock:
                self._coming -= 1

    def _take(self, task: Task) -> None:
        try:
            blocks = [(*self._mapped.write(buffers, size), size) for buffers, size in task.parcel.blocks]
        except OSError as error:
            if self._ending:
                task.fail(None)
                return
            msg = f"There is no memory for {task.where} to be given to a process: {error}. Use fewer, or smaller batches."
            raise WorkerError(msg) from error
        with self._sending:  # which may have to wait; those who listen do not
            with self._lock:
                if self._over or self._ending:
                    task.fail(None if self._ending else self._ended(task))
                    return
                self._since = self._since if self._tasks else time.monotonic()
                self._tasks.append(task)
            try:
                self._send_files(task.files)
                closed = [self._closed.popleft() for _ in range(len(self._closed))]
                told = {**task.told, "where": task.where, "blocks": blocks}
                self._channel.send({**told, "back": self._mapped.let_go(), "closed": closed})
            except OSError:  # it has ended, and whoever listens tells so
                self._process.kill()

    def _send_recipe(self, recipe: bytes) -> None:
        """Send what it works by; bytes that may be many go where batches do, so that nobody waits for it to begin."""
        place = self._mapped.write([(0, recipe)], len(recipe))
        environment = {"PYTHONPATH": os.environ.get("PYTHONPATH")}
        begin = {"path": _path(), "argv": sys.argv, "environment": environment, "recipe": [*place, len(recipe)]}
        with contextlib.suppress(OSError):  # whoever listens tells what has become of it
            self._channel.send(begin)

    def _send_files(self, files: Mapping[LocalFile, int]) -> None:
        """Send it the files that it does not have yet; it will be told when they can be closed."""
        new = [(number, file) for file, number in files.items() if file not in self._known]
        for at in range(0, len(new), FILES_AT_ONCE):
            some = new[at : at + FILES_AT_ONCE]
            told = {"files": [number for number, _ in some], "paths": [file.path for _, file in some]}
            self._channel.send(told, files=[file.fileno() for _, file in some])
        for number, file in new:
            self._known.add(file)
            weakref.finalize(file, self._closed.append, number).atexit = False

    def _listen(self) -> None:
        """Hand on what it answers, until it has ended or has to be."""
        late = False
        while not self._ending:
            if self._channel.waits(LOOK):
                message = self._channel.receive()
                if message is None:
                    break
                self._answered(message)
                del message  # while it waits, a thread must not keep alive what it has handed over
            else:
                late = self._is_late()
                if late or self._process.poll() is not None:
                    break
        with self._lock:
            self._over, tasks, self._tasks = True, self._tasks, deque()
        if not self._ending:
            self._reap(0.0 if late else PATIENCE)
        for task in tasks:
            task.fail(None if self._ending else self._late(task) if late else self._ended(task))

    def _answered(self, message: Message) -> None:
        """Tell a task its reply."""
        told = message.told
        error = error_in(message.more) if message.more else None
        if "begun" in told:
            self._starting.end()
            self._begun = told["begun"]
            if not self._begun:
                self._cannot_begin(error)
            return
        self._mapped.take_back(told["back"])
        with self._lock:
            task = self._tasks.popleft()
            self._since = time.monotonic()
        try:
            memory = [self._mapped.read((first, room), size) for first, room, size in told.get("blocks", ())]
            task.receive(Reply(told=told, memory=memory, error=error))
        except BaseException as why:  # noqa: BLE001 - it is raised where the batch is asked for
            task.fail(why)

    def _is_late(self) -> bool:
        with self._lock:
            return bool(self._tasks) and time.monotonic() - self._since > self._timeout

    def _cannot_begin(self, error: BaseException | None) -> None:
        with self._lock:
            self._over, tasks, self._tasks = True, self._tasks, deque()
        for task in tasks:
            msg = (
                f"A process could not take over {self._told}: {type(error).__name__}: {error}. What a function needs must be "
                "found by other processes too. Install the module, or put its folder on PYTHONPATH."
            )
            told = WorkerError(msg)
            told.__cause__ = error
            task.fail(told)

    def _late(self, task: Task) -> WorkerError:
        return WorkerError(
            f"Process {self._process.pid} has worked for more than {self._timeout:g} seconds during {self._told}, on "
            f"{task.where}, and was ended. Perhaps the function waits for something that never comes. If it needs so long, "
            "allow it: .using(timeout=...)."
        )

    def _ended(self, task: Task) -> WorkerError:
        code = self._process.poll() or 0
        how, remedy = f"ended with exit code {code}", "A function must return or raise an error, and not end its process."
        if not self._begun:
            remedy = "It ended before it had begun: see what it has written to stderr."
        if code < 0:
            how = f"was ended by {_signal(-code)}"
            remedy = "Native code may have crashed: run it with workers='threads' and Python's faulthandler to see where."
        if -code == signal.SIGKILL:
            remedy = "The system does that where memory runs out: use fewer processes, or smaller batches."
        return WorkerError(f"Process {self._process.pid} {how} during {self._told}, on {task.where}. {remedy}")

    def end(self) -> None:
        """Tell it to end; nothing is waited for."""
        self._ending = True
        self._channel.end()

    def close(self, until: float) -> None:
        """See it ended by a moment of the clock, and let go of everything."""
        try:
            self._reap(max(0.0, until - time.monotonic()))
            if self._thread is not threading.current_thread():
                self._thread.join(PATIENCE)
            self._mapped.close()
        finally:  # also where somebody has lost patience meanwhile
            self._channel.close()
            os.close(self._file)
            os.close(self._life)

    def _reap(self, patience: float) -> None:
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Gang:
    """The processes of a crew; it knows nothing of the crew, so that the crew can be collected."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.processes: list[_Process] = []
        self.stopped = False
        self._owner = os.getpid()

    def stop(self, patience: float = PATIENCE) -> None:
        """End all processes within so many seconds; those of the process that this one was forked from are not ours."""
        if os.getpid() != self._owner:
            return
        with self.lock:
            self.stopped, processes, self.processes = True, self.processes, []
        until = time.monotonic() + min(patience, PATIENCE)
        with contextlib.ExitStack() as closing:
            for process in processes:
                closing.callback(process.close, until)
            for process in processes:
                process.end()


class ProcessPool:
    """Some processes that work by one recipe. They end with the threads of a pool, or when nobody refers to the crew.

    Attributes:
        starting: The clock of what passes before the first of them can begin.
    """

    def __init__(self, recipe: Recipe, pool: ThreadPool, processes: int, timeout: float) -> None:
        """Store what they work by, and how many there are; none is started yet."""
        self._processes, self._recipe, self._timeout, self.starting = processes, recipe, timeout, Wait()
        self._sent: bytes | None = None
        self._gang = _Gang()
        self._end = weakref.finalize(self, self._gang.stop)
        pool.call_on_stop(self._gang.stop)
        self._numbers: weakref.WeakKeyDictionary[LocalFile, int] = weakref.WeakKeyDictionary()
        self._next = 0

    def give(self, task: Task) -> None:
        """Give a task to the process that has least to do; one more is started where all are busy, while there are too few.

        Raises:
            ArgumentError: If functions cannot be sent to another process.
            WorkerError: If a process cannot be started.
        """
        with self._gang.lock:
            process = self._chosen()
            if process is not None:
                process.expect()  # or the next would be given to it too, before it has this one
        if process is None:
            task.fail(None)
        else:
            process.give(task)

    def number(self, file: LocalFile) -> int:
        """Return the number that processes know a file by."""
        with self._gang.lock:
            if file not in self._numbers:
                self._numbers[file] = self._next
                self._next += 1
            return self._numbers[file]

    def _chosen(self) -> _Process | None:
        """Return the process that gets the next task; None where nobody wants it any more."""
        if self._gang.stopped:
            return None
        least = min(self._gang.processes, key=lambda process: process.load, default=None)
        if least is not None and (least.load == 0 or len(self._gang.processes) >= self._processes):
            return least
        if _ending.is_set():
            msg = (
                f"Python ends, and starts no more processes for {self._recipe.told}. Stop what asks for batches before it does."
            )
            raise WorkerError(msg)
        if self._sent is None:
            self.starting.begin()
            self._sent = dumps_by_value(self._recipe)
        try:
            started = _Process(self._sent, self._recipe.told, self._timeout, self.starting)
        except OSError as error:
            msg = f"A process for {self._recipe.told} could not be started: {error}. Use fewer, or workers='threads'."
            raise WorkerError(msg) from error
        self._gang.processes.append(started)
        return started


def _started(control: int, file: int, life: int) -> subprocess.Popen[bytes]:
    """Start a process that has these files."""
    if not sys.executable or not hasattr(socket, "send_fds"):
        msg = "workers='processes' needs a system like Unix, and an interpreter to start. Use workers='threads' here."
        raise ArgumentError(msg)
    warnings = [part for option in sys.warnoptions for part in ("-W", option)]
    given = [str(number) for number in (control, file, life, os.getpid())]
    return subprocess.Popen(  # noqa: S603 - this interpreter, with a module of ours
        [sys.executable, "-P", *warnings, "-m", "penstock._engine.processes.worker", *given],
        stdin=subprocess.DEVNULL,
        pass_fds=(control, file, life),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_path())},
        process_group=0,  # so that Ctrl-C in a terminal reaches this process only
    )


def _path() -> list[str]:
    """Return where modules are found, as another process can use it."""
    return [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - "" is here


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
