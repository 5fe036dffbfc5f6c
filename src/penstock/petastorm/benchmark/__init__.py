"""`petastorm.benchmark`: the throughput of readers and loaders."""
