"""Random access: single rows by number, ranges, whole tables, data frames.

In: an opened table and row numbers. Out: arrays, Arrow tables, pandas data frames.
May import all packages up to `batch`.
"""
