"""Rows, batches, Arrow tables and data frames become Parquet files with a schema.

In: data and a schema. Out: checked and encoded columns, files, partitions; the commit makes them visible.
Imports of the engine: `storage`, `runtime`, `parquet`, `commit`, `decode`.
"""
