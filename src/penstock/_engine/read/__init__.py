"""Row groups of data files become Arrow tables with the columns of the table.

In: a snapshot, a file, row groups. Out: Arrow columns, less deleted and filtered rows, with partition values.
Imports of the engine: `storage`, `runtime`, `parquet`.
"""
