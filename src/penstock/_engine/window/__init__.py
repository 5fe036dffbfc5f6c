"""Shuffle windows in memory: units are read ahead and gathered in the order of the window.

In: the windows of a rank. Out: a window buffer that gives rows, or views of whole batches.
Imports of the engine: `query`, `runtime`, `parquet`, `decode`, `read`, `plan`, `order`.
"""
