"""The command line: `penstock COMMAND`. Each module here without a leading underscore is a command."""

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
"""Exit codes. Usage errors are 2, the code of argparse; 130 and 141 are the codes of shells for SIGINT and SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Errors are one line on the standard error stream, without a traceback.

    Args:
        arguments: The arguments after `penstock`; by default those of the process.

    Example:
        >>> main(["inspect", "/no/such/table"])
        1
    """
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()  # if a caller closed them
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # for terminals that cannot show all characters
            stream.reconfigure(errors="backslashreplace")
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as leave:  # raised by argparse after it has printed the usage
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
    """Return the command modules by name; each has `add(subparsers)` and `run(options)`."""
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
        # A default would override the option before the command.
        added.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show where an error came from")
        added.set_defaults(run=command.run)
    return parser


def _version() -> str:
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "(not installed)"


def _failed(message: str, code: int, *, debug: bool) -> int:
    """Print an error, and return the exit code."""
    with suppress(BrokenPipeError):
        sys.stdout.flush()  # to keep the order of both streams
    if debug:
        traceback.print_exc()
    sys.stderr.write(f"penstock: {message}\n")
    return code


def _leave_pipe() -> None:
    """Redirect the output to nowhere, so that the interpreter does not report the closed pipe at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
