"""Which row groups a query reads, and how many rows of each are selected.

In: an opened table, a query. Out: a plan with a fingerprint: units in order, rows per unit, starts of sequences.
Imports of the engine: `query`, `storage`, `runtime`, `parquet`, `decode`, `read`.
"""
