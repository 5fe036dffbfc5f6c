"""`petastorm.pyarrow_helpers`: queues of Arrow tables."""
