"""Arrow tables as bytes: `petastorm.reader_impl.arrow_table_serializer`. Readers here send none."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["ArrowTableSerializer"]


class ArrowTableSerializer:
    """Arrow's own stream."""

    def serialize(self, rows: pa.Table) -> pa.Buffer:
        """Return a table as bytes."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return sink.getvalue()

    def deserialize(self, serialized_rows: Any) -> pa.Table:
        """Return the table of bytes."""
        return pa.ipc.open_stream(serialized_rows).read_all()
