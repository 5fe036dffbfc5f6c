"""Rows, batches, Arrow tables and data frames become Parquet files with a schema.

In: data and a schema. Out: checked and encoded columns, files, partitions; the commit makes them visible.
Errors: `ArgumentError` for options, schemas and existing tables, `DataError` for rows, `WriteError` for storage.
Imports of the engine: `storage`, `runtime`, `parquet`, `commit`, `decode`.
"""
