"""Rows of a window become a batch: padded, stacked, mapped by the user's functions, without bad rows.

In: rows of a window buffer. Out: a dict of arrays, as the consumer gets it.
Imports of the engine: `query`, `runtime`, `decode`, `order`, `window`.
"""
