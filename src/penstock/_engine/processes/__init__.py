"""Worker processes that decode and map batches; data crosses in shared memory.

In: tasks of `batch`. Out: the same batches. Worker: `python -m penstock._engine.processes.worker`.
Imports of the engine: `query`, `runtime`, `parquet`, `decode`, `window`, `batch`.
"""
