"""What a process of `exec_in_new_process` runs: the function that its parent sends it."""

from __future__ import annotations

import logging
import sys

from penstock.petastorm._impl.pickling import unpacked

__all__ = ["main"]


def main() -> None:
    """Run the function; only the parent has the other end of standard input."""
    logging.basicConfig()
    func, args, kargs = unpacked(sys.stdin.buffer.read())
    func(*args, **kargs)


if __name__ == "__main__":
    main()
