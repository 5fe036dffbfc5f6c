"""Benchmarks of reading and writing. Run each script by hand; `docs/benchmarks.md` has the results."""
