"""The names under which Petastorm stores its metadata."""

from __future__ import annotations

__all__ = ["INDEX_KEY", "ROW_GROUPS_KEY", "SUMMARY", "UNISCHEMA_KEY"]

UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"
ROW_GROUPS_KEY = b"dataset-toolkit.num_row_groups_per_file.v1"
INDEX_KEY = b"dataset-toolkit.rowgroups_index.v1"
"""Keys of `_common_metadata`."""

SUMMARY = "_metadata"
"""The file with the footers of all data files."""
