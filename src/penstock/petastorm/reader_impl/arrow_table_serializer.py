"""`petastorm.reader_impl.arrow_table_serializer`: Arrow tables as bytes. Readers of Penstock do not use it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["ArrowTableSerializer"]


class ArrowTableSerializer:
    """Serializes tables as Arrow streams."""

    def serialize(self, rows: pa.Table) -> pa.Buffer:
        """Return the bytes of a table."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return sink.getvalue()

    def deserialize(self, serialized_rows: Any) -> pa.Table:
        """Return the table of bytes."""
        return pa.ipc.open_stream(serialized_rows).read_all()
