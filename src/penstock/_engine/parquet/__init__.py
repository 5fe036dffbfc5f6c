"""Parquet files below the level of pyarrow: footers, statistics, page indexes, and cells of bytes inside pages.

In: an open file. Out: row groups with statistics; where pages and cells lie; single pages as Arrow.
Imports of the engine: `storage`, `runtime`.
"""
