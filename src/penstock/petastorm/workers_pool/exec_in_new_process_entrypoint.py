"""The main function of a process of `exec_in_new_process`."""

from __future__ import annotations

import logging
import sys

from penstock.petastorm._impl.pickling import loads

__all__ = ["main"]


def main() -> None:
    """Run the function that the parent process has written to standard input."""
    logging.basicConfig()
    func, args, kargs = loads(sys.stdin.buffer.read())
    func(*args, **kargs)


if __name__ == "__main__":
    main()
