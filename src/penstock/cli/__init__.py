"""The command line: `penstock COMMAND`. Each file here that has no underscore before its name is a command."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from penstock.errors import PenstockError

__all__ = ["main"]

FAILED, INTERRUPTED, PIPE_CLOSED = 1, 130, 141
"""Exit codes; what is asked wrongly is 2, as argparse has it, and the last two are what a shell says of such ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Mistakes of the user are told in one line on the standard error stream, without a traceback.

    Args:
        arguments: What stands after `penstock`; by default what the program was started with.

    Example:
        >>> main(["inspect", "/no/such/table"])
        1
    """
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()  # where a caller has closed them
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a letter shows its number
            stream.reconfigure(errors="backslashreplace")
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as leave:  # so argparse ends, after it has told the usage
        return int(leave.code or 0)
    try:
        done: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_pipe()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return _failed("stopped.", INTERRUPTED, debug=options.debug)
    except (PenstockError, OSError) as error:
        return _failed(str(error), FAILED, debug=options.debug)
    return done


def commands() -> dict[str, ModuleType]:
    """Return the commands by name: each has `add(subparsers)` and `run(options)`."""
    names = [info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")]
    return {name: importlib.import_module(f"{__name__}.{name}") for name in sorted(names)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock", description="Feeds Parquet tables to training loops: shuffled, sharded, resumable."
    )
    parser.add_argument("--version", action="version", version=f"penstock {_version()}")
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in commands().values():
        added: argparse.ArgumentParser = command.add(subparsers)
        # Its default would undo what was said before the command.
        added.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show where an error came from")
        added.set_defaults(run=command.run)
    return parser


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "(not installed)"


def _failed(message: str, code: int, *, debug: bool) -> int:
    """Tell what went wrong, and return the exit code."""
    with suppress(BrokenPipeError):
        sys.stdout.flush()  # so that both streams come in the order in which they were written
    if debug:
        traceback.print_exc()
    sys.stderr.write(f"penstock: {message}\n")
    return code


def _leave_pipe() -> None:
    """Let the interpreter write its last into nothing, so that it does not complain of the pipe either."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
