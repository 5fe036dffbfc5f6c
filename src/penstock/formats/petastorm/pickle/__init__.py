"""Pickles of Petastorm, interpreted by a closed table of opcodes and names; nothing is ever unpickled."""
