"""Tables read row group by row group, as the readers of Petastorm do.

In: row-group tasks in some order, a predicate. Out: decoded row groups in that order.
Imports of the engine: `query`, `runtime`, `parquet`, `decode`, `read`, `processes`.
"""
