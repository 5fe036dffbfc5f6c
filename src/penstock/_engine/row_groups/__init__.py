"""Row group by row group, as the readers of Petastorm work.

In: row groups in some order, a predicate. Out: decoded row groups in that order.
Imports of the engine: `query`, `runtime`, `parquet`, `decode`, `read`, `processes`.
"""
