"""The engine: from a query to batches of NumPy arrays, and from rows to files.

Its packages form layers. `docs/architecture.md` describes each, from the lowest to the highest. `tests/test_architecture.py`
checks that each imports lower ones only. No package imports a framework, a compatibility package or the command line.
"""
