"""What runs the work: threads, waiting that Ctrl-C can interrupt, memory budget, buffers, counters.

In: tasks, byte counts. Out: results in order; arrays of reused memory; statistics of a loader.
Knows nothing about tables, rows or batches.
Imports of the engine: none.
"""
