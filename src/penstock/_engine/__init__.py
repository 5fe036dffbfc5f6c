"""The engine: from a query to batches of NumPy arrays, and from rows to files.

The packages from the lowest layer to the highest; `tests/test_architecture.py` checks that each imports lower ones only.

    query     the query as a value, and the values that every later step uses
    storage   URLs, filesystems and listings
    runtime   threads, memory, buffers, counters
    parquet   footers, page indexes and cells inside of files
    commit    changes of a table that appear at once or not at all
    decode    Arrow becomes NumPy
    read      row groups of data files become Arrow tables
    plan      which row groups a query reads, and how many rows of each are selected
    order     the order of rows in an epoch, and which rank gets which
    window    shuffle windows in memory
    batch     rows of a window become a batch
    processes the same in worker processes
    lookup    single rows by number, whole tables, data frames
    row_groups  row group by row group, as the readers of Petastorm work
    deliver   batches in order, over epochs; the entry points of reading
    write     rows become files

No package imports a framework, a compatibility package or the command line.
"""
