"""The order of rows in an epoch, and which rank gets which rows, by arithmetic on a seed, an epoch and a position.

In: rows per unit, shuffle, seed, epoch, ranks. Out: windows, schedules of batches, `state_dict`s.
Pure functions; nothing is read.
Imports of the engine: `query`.
"""
