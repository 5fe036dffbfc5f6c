"""Changes of tables without a log: all files of a write appear at once, or none.

In: a target and new files. Out: a committed table, by an exchange of directories or by markers beside the files.
Imports of the engine: `storage`, `runtime`.
"""
