"""URLs become filesystems and paths, and errors of storage become errors that name the file.

In: a URL, storage options. Out: a pyarrow filesystem and a path; listings; `DataError` for a missing or damaged file.
Imports of the engine: none.
"""
