"""Batches in order, over epochs: the entry points of reading.

In: a query over one table or a mixture. Out: an iterator of batches with `state_dict`; skipped rows; statistics.
Imports of the engine: `query`, `runtime`, `decode`, `plan`, `order`, `window`, `batch`, `processes`, `lookup`.
"""
