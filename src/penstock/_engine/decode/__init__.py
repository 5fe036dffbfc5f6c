"""Arrow columns become NumPy arrays, by the type of the column, its policies and its codec.

In: Arrow arrays, `ColumnDecoding`. Out: arrays, rows first; `CellError` with the row of a bad cell.
Imports of the engine: `query`, `runtime`, `parquet`.
"""
