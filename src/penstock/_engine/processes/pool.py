"""A pool of worker processes: started with the first tasks, ended with the iteration; every task gets a reply or an error."""

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock._engine.parquet.file_blobs import LocalFile
from penstock._engine.processes.channel import Channel, Message, unpack_error
from penstock._engine.processes.pickling import dumps_by_value
from penstock._engine.processes.serialize import unpack
from penstock._engine.processes.shared_memory import Bytes, SharedMemory, anonymous_file
from penstock._engine.processes.task import Recipe, WorkerOutput
from penstock._engine.runtime.threads import ThreadPool
from penstock._engine.runtime.timers import Wait
from penstock.errors import ArgumentError, WorkerError

PATIENCE = 1.0
"""Seconds that a process has to end by itself."""

POLL_SECONDS = 0.5
"""Seconds between two checks that a silent process is alive and not late."""

FILES_PER_MESSAGE = 100
"""Files that are sent with one message; systems allow more."""


_exiting = threading.Event()
"""Set when Python begins to exit. A thread that goes on with epochs must not start processes then."""

weakref.finalize(_exiting, bool).detach()  # The first finalizer registers the exit hook of all; ours must run before it.
atexit.register(_exiting.set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a process returned for a task.

    Attributes:
        output: The result; empty if there was an error, except for the rows before the one that failed.
        nbytes: Its size in shared memory.
        busy: What the process has counted, for `Meter.add`.
        error: What was raised.
    """

    output: WorkerOutput
    nbytes: int
    busy: list[list[int]]
    error: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One batch for a process.

    Attributes:
        blocks: The batch, as `pack_input` returns it.
        files: Files that its cells are in, with their numbers.
        where: Which batch it is, for messages.
        receive: Called with the reply.
        fail: Called with the reason if there is no reply; with None if the task was dropped.
    """

    blocks: Sequence[memoryview]
    files: Mapping[LocalFile, int]
    where: str
    receive: Callable[[Reply], None]
    fail: Callable[[BaseException | None], None]


class _Process:
    """One process and its tasks."""

    def __init__(self, recipe: bytes, work: str, timeout: float, starting: Wait) -> None:
        """Start the process; `starting` ends when it has begun to work."""
        self._work, self._timeout, self._starting = work, timeout, starting
        self._tasks: deque[Task] = deque()
        self._since, self._expected = 0.0, 0
        self._begun = self._over = self._ending = False
        self._lock, self._sending = threading.RLock(), threading.RLock()
        self._sent_files: weakref.WeakSet[LocalFile] = weakref.WeakSet()
        self._closed_files: deque[int] = deque()
        ours, theirs = socket.socketpair()
        self._file = anonymous_file()
        life, self._life = os.pipe()
        try:
            self._process = _start(theirs.fileno(), self._file, life)
        except BaseException:
            ours.close()
            os.close(self._file)
            os.close(self._life)
            raise
        finally:
            theirs.close()
            os.close(life)
        self._memory, self._channel = SharedMemory(self._file), Channel(ours)
        self._send_recipe(recipe)
        self._thread = threading.Thread(target=self._listen, name=f"penstock-process-{self._process.pid}", daemon=True)
        self._thread.start()

    @property
    def load(self) -> int:
        """How many tasks it has and is about to get."""
        return len(self._tasks) + self._expected

    def expect(self) -> None:
        """Count a task that it is about to get."""
        with self._lock:
            self._expected += 1

    def submit(self, task: Task) -> None:
        """Send a task that was announced by `expect`."""
        try:
            self._send(task)
        finally:
            with self._lock:
                self._expected -= 1

    def _send(self, task: Task) -> None:
        try:
            blocks = [self._memory.write(block) for block in task.blocks]
        except OSError as error:
            if self._ending:
                task.fail(None)
                return
            msg = f"There is no memory to send {task.where} to a process: {error}. Use fewer processes, or smaller batches."
            raise WorkerError(msg) from error
        with self._sending:  # which may block; the listening thread does not wait for it
            with self._lock:
                if self._over or self._ending:
                    task.fail(None if self._ending else self._ended(task))
                    return
                self._since = self._since if self._tasks else time.monotonic()
                self._tasks.append(task)
            try:
                self._send_files(task.files)
                closed = [self._closed_files.popleft() for _ in range(len(self._closed_files))]
                released = self._memory.released()
                self._channel.send({"where": task.where, "blocks": blocks, "released": released, "closed": closed})
            except OSError:  # it has ended, which the listening thread reports
                self._process.kill()

    def _send_recipe(self, recipe: bytes) -> None:
        """Send the recipe by shared memory, so that a large one does not block this thread."""
        block = self._memory.write(memoryview(recipe))
        environment = {"PYTHONPATH": os.environ.get("PYTHONPATH")}
        with contextlib.suppress(OSError):  # it has ended, which the listening thread reports
            self._channel.send({"path": _path(), "argv": sys.argv, "environment": environment, "recipe": block})

    def _send_files(self, files: Mapping[LocalFile, int]) -> None:
        """Send the files that it does not have yet. A later message says when it can close them."""
        new = [(number, file) for file, number in files.items() if file not in self._sent_files]
        for at in range(0, len(new), FILES_PER_MESSAGE):
            part = new[at : at + FILES_PER_MESSAGE]
            content = {"files": [number for number, _ in part], "paths": [file.path for _, file in part]}
            self._channel.send(content, files=[file.fileno() for _, file in part])
        for number, file in new:
            self._sent_files.add(file)
            weakref.finalize(file, self._closed_files.append, number).atexit = False

    def _listen(self) -> None:
        """Pass on its replies until it has ended or must be ended."""
        late = False
        while not self._ending:
            if self._channel.wait(POLL_SECONDS):
                message = self._channel.receive()
                if message is None:
                    break
                self._handle(message)
                del message  # which would keep the memory of its batch alive while this thread waits
            else:
                late = self._is_late()
                if late or self._process.poll() is not None:
                    break
        tasks = self._stop_tasks()
        if not self._ending:
            self._reap(0.0 if late else PATIENCE)
        for task in tasks:
            task.fail(None if self._ending else self._late(task) if late else self._ended(task))

    def _stop_tasks(self) -> deque[Task]:
        """Accept no more tasks, and return those without a reply."""
        with self._lock:
            self._over, tasks, self._tasks = True, self._tasks, deque()
        return tasks

    def _handle(self, message: Message) -> None:
        """Call the task of a reply."""
        content = message.content
        error = unpack_error(message.more) if message.more else None
        if "begun" in content:
            self._starting.end()
            self._begun = content["begun"]
            if not self._begun:
                self._cannot_begin(error)
            return
        self._memory.take_back(content["released"])
        with self._lock:
            task = self._tasks.popleft()
            self._since = time.monotonic()
        try:
            blocks = content["blocks"]
            output = self._unpack([self._memory.read(block) for block in blocks], task) if blocks else WorkerOutput()
            nbytes = sum(size for _, _, size in blocks)
            task.receive(Reply(output=output, nbytes=nbytes, busy=content["busy"], error=error))
        except BaseException as problem:  # noqa: BLE001 - it is raised where the batch is requested
            task.fail(problem)

    def _unpack(self, blocks: list[Bytes], task: Task) -> WorkerOutput:
        try:
            output: WorkerOutput = unpack(blocks)
        except Exception as error:
            msg = (
                f"Process {self._process.pid} returned values that cannot be unpickled here during {self._work}, on "
                f"{task.where}: {type(error).__name__}: {error}. Return arrays, numbers, text, bytes, times, or lists, tuples "
                "and dicts of them."
            )
            raise WorkerError(msg) from error
        return output

    def _is_late(self) -> bool:
        with self._lock:
            return bool(self._tasks) and time.monotonic() - self._since > self._timeout

    def _cannot_begin(self, error: BaseException | None) -> None:
        for task in self._stop_tasks():
            msg = (
                f"A process could not take over {self._work}: {type(error).__name__}: {error}. What a function needs must be "
                "found by other processes too. Install the module, or put its folder on PYTHONPATH."
            )
            problem = WorkerError(msg)
            problem.__cause__ = error
            task.fail(problem)

    def _late(self, task: Task) -> WorkerError:
        return WorkerError(
            f"Process {self._process.pid} has worked for more than {self._timeout:g} seconds during {self._work}, on "
            f"{task.where}, and was ended. Perhaps the function waits for something that never comes. If it needs so long, "
            "allow it: .using(timeout=...)."
        )

    def _ended(self, task: Task) -> WorkerError:
        code = self._process.poll() or 0
        how, remedy = f"ended with exit code {code}", "A function must return or raise an error, and not end its process."
        if not self._begun:
            remedy = "It ended before it had begun: see what it has written to stderr."
        if code < 0:
            how = f"was ended by {_signal_name(-code)}"
            remedy = "Native code may have crashed: run it with workers='threads' and Python's faulthandler to see where."
        if -code == signal.SIGKILL:
            remedy = "The system does that where memory runs out: use fewer processes, or smaller batches."
        return WorkerError(f"Process {self._process.pid} {how} during {self._work}, on {task.where}. {remedy}")

    def end(self) -> None:
        """Ask it to end, without waiting."""
        self._ending = True
        self._channel.end()

    def close(self, until: float) -> None:
        """Wait for its end until a moment of the clock, then kill it, and close everything."""
        try:
            self._reap(max(0.0, until - time.monotonic()))
            if self._thread is not threading.current_thread():
                self._thread.join(PATIENCE)
            self._memory.close()
        finally:  # also after Ctrl-C
            self._channel.close()
            os.close(self._file)
            os.close(self._life)

    def _reap(self, patience: float) -> None:
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Processes:
    """The processes of a pool. They do not refer to the pool, so that it can be garbage collected."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.running: list[_Process] = []
        self.stopped = False
        self._owner = os.getpid()

    def stop(self, patience: float = PATIENCE) -> None:
        """End all processes within so many seconds, but not from a fork of the process that started them."""
        if os.getpid() != self._owner:
            return
        with self.lock:
            self.stopped, processes, self.running = True, self.running, []
        until = time.monotonic() + min(patience, PATIENCE)
        with contextlib.ExitStack() as closing:
            for process in processes:
                closing.callback(process.close, until)
            for process in processes:
                process.end()


class ProcessPool:
    """Processes that work by one recipe. They end with the threads of a pool, or when the process pool is collected.

    Attributes:
        starting: The time before the first of them begins to work.
    """

    def __init__(self, recipe: Recipe, pool: ThreadPool, processes: int, timeout: float) -> None:
        """Store the recipe and the number of processes; the first task starts one."""
        self._count, self._recipe, self._timeout, self.starting = processes, recipe, timeout, Wait()
        self._packed_recipe: bytes | None = None
        self._processes = _Processes()
        self._end = weakref.finalize(self, self._processes.stop)
        pool.call_on_stop(self._processes.stop)
        self._numbers: weakref.WeakKeyDictionary[LocalFile, int] = weakref.WeakKeyDictionary()
        self._next = 0

    def submit(self, task: Task) -> None:
        """Send a task to the process with the fewest. A new process is started while all are busy and the pool is not full."""
        with self._processes.lock:
            process = self._choose()
            if process is not None:
                process.expect()  # so that the next task does not choose it before it has this one
        if process is None:
            task.fail(None)
        else:
            process.submit(task)

    def file_number(self, file: LocalFile) -> int:
        """Return the number by which processes know a file."""
        with self._processes.lock:
            if file not in self._numbers:
                self._numbers[file] = self._next
                self._next += 1
            return self._numbers[file]

    def _choose(self) -> _Process | None:
        """Return the process that gets the next task; None after the pool has stopped."""
        if self._processes.stopped:
            return None
        running = self._processes.running
        least = min(running, key=lambda process: process.load, default=None)
        if least is not None and (least.load == 0 or len(running) >= self._count):
            return least
        if _exiting.is_set():
            msg = f"Python ends, and starts no more processes for {self._recipe}. Stop what asks for batches before it does."
            raise WorkerError(msg)
        if self._packed_recipe is None:
            self.starting.begin()
            self._packed_recipe = _pack_recipe(self._recipe)
        try:
            process = _Process(self._packed_recipe, str(self._recipe), self._timeout, self.starting)
        except OSError as error:
            msg = f"A process for {self._recipe} could not be started: {error}. Use fewer, or workers='threads'."
            raise WorkerError(msg) from error
        running.append(process)
        return process


def _pack_recipe(recipe: Recipe) -> bytes:
    """Return a recipe for other processes."""
    try:
        return dumps_by_value(recipe)
    except Exception as error:
        name = next((f"map {step.name}" for step in recipe.query.maps if not _can_be_pickled(step.function)), "the dataset")
        msg = (
            f"{name} cannot be sent to another process: {error}. Functions are sent by cloudpickle, with what they refer to. "
            "Make what cannot be pickled inside the function, or leave workers='processes' out."
        )
        raise ArgumentError(msg) from error


def _can_be_pickled(function: Callable[..., object]) -> bool:
    try:
        dumps_by_value(function)
    except Exception:  # noqa: BLE001 - pickling runs what the function refers to
        return False
    return True


def _start(control: int, file: int, life: int) -> subprocess.Popen[bytes]:
    """Start a process that inherits these files."""
    if not sys.executable or not hasattr(socket, "send_fds"):
        msg = "workers='processes' needs a system like Unix, and an interpreter to start. Use workers='threads' here."
        raise ArgumentError(msg)
    warnings = [part for option in sys.warnoptions for part in ("-W", option)]
    arguments = [str(number) for number in (control, file, life, os.getpid())]
    return subprocess.Popen(  # noqa: S603 - this interpreter, with a module of ours
        [sys.executable, "-P", *warnings, "-m", "penstock._engine.processes.worker", *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=(control, file, life),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_path())},
        process_group=0,  # so that Ctrl-C in a terminal reaches this process only
    )


def _path() -> list[str]:
    """Return where modules are found, as another process can use it."""
    return [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - an empty entry is the current directory


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
