"""Random access: single rows by number, ranges, whole tables, data frames.

In: an opened table and row numbers. Out: arrays, Arrow tables, pandas data frames.
Imports of the engine: `query`, `runtime`, `parquet`, `decode`, `read`, `plan`, `window`, `batch`.
"""
