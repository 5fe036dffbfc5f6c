"""Batches in order, over epochs: the entry points of reading.

In: a query over one table or a mixture. Out: an iterator of batches with `state_dict`; skipped rows; statistics.
May import all packages of reading.
"""
