"""Build Delta tables that no library here can write: the log as JSON, and the data files with pyarrow."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats.delta.deletion_vectors import ALPHABET, MAGIC, MOST_IN_ARRAY, NO_RUNS
from penstock.model import IntArray

ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", pa.map_(pa.string(), pa.string())),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        (
            "deletionVector",
            pa.struct(
                [
                    ("storageType", pa.string()),
                    ("pathOrInlineDv", pa.string()),
                    ("offset", pa.int32()),
                    ("sizeInBytes", pa.int32()),
                    ("cardinality", pa.int64()),
                ]
            ),
        ),
    ]
)
METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", pa.map_(pa.string(), pa.string()))])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", pa.map_(pa.string(), pa.string())),
    ]
)
PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ]
)
SIDECAR = pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())])


def column(
    name: str, kind: Any, notes: Mapping[str, Any] | None = None, *, number: int | None = None, called: str | None = None
) -> dict[str, Any]:
    """Return a schema field with metadata; `number` and `called` are its id and physical name for column mapping."""
    result = dict(notes or {})
    result |= {} if number is None else {"delta.columnMapping.id": number}
    result |= {} if called is None else {"delta.columnMapping.physicalName": called}
    return {"name": name, "type": kind, "nullable": True, "metadata": result}


def struct_of(*fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of a struct."""
    return {"type": "struct", "fields": list(fields)}


def protocol(*features: str, reader: int | None = None) -> dict[str, Any]:
    """Return a protocol action, with reader version 3 if there are features, else 1."""
    version = reader if reader is not None else 3 if features else 1
    result: dict[str, Any] = {"minReaderVersion": version, "minWriterVersion": 7 if version == 3 else 5}
    return {"protocol": result | ({"readerFeatures": list(features), "writerFeatures": list(features)} if version == 3 else {})}


def metadata(fields: Sequence[Mapping[str, Any]], partitions: Sequence[str] = (), **configuration: str) -> dict[str, Any]:
    """Return a metaData action; two underscores in an option name stand for a dot."""
    return {
        "metaData": {
            "id": "by-hand",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(struct_of(*fields)),
            "partitionColumns": list(partitions),
            "configuration": {key.replace("__", "."): value for key, value in configuration.items()},
        }
    }


class Lake:
    """A Delta table in a directory."""

    def __init__(self, path: Path) -> None:
        """Create an empty log."""
        self.path, self.log = path, path / "_delta_log"
        self.log.mkdir(parents=True)

    def commit(self, version: int, *actions: Mapping[str, Any]) -> None:
        """Write a commit."""
        self.json(f"{version:020d}.json", actions)

    def json(self, name: str, actions: Iterable[Mapping[str, Any]]) -> None:
        """Write a file of the log."""
        (self.log / name).write_text("".join(json.dumps(action) + "\n" for action in actions))

    def add(
        self,
        name: str,
        rows: pa.Table,
        *,
        partition: Mapping[str, str | None] | None = None,
        stats: Any = "rows",
        parquet: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Write a data file with the writer options `parquet`, and return its add action.

        The statistics hold the number of rows, unless `stats` gives other ones.
        """
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, **(parquet or {}))
        stats = {"numRecords": rows.num_rows} if stats == "rows" else stats
        result = {
            "path": quote(name),
            "partitionValues": dict(partition or {}),
            "size": path.stat().st_size,
            "modificationTime": 1,
            "dataChange": True,
            **({} if stats is None else {"stats": json.dumps(stats)}),
        }
        return {"add": {**result, **more}}

    def parquet(self, name: str, actions: Sequence[Mapping[str, Any]]) -> None:
        """Write a Parquet file of the log: a checkpoint, a part of one, or a sidecar."""
        kinds = {"add": ADD, "metaData": METADATA, "protocol": PROTOCOL, "sidecar": SIDECAR}
        rows = [{kind: _as_maps(action[kind]) if kind in action else None for kind in kinds} for action in actions]
        table = pa.table({kind: pa.array([row[kind] for row in rows], type_) for kind, type_ in kinds.items()})
        path = self.log / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path)

    def vectors(self, name: str, *rows: Iterable[int], prefix: str = "") -> list[dict[str, Any]]:
        """Write a file of deletion vectors, and return the log descriptor of each."""
        identity = UUID(name)
        data, result = bytearray(b"\1"), []
        for numbers in rows:
            body = encoded(np.array(sorted(numbers), dtype=np.int64))
            result.append(
                {
                    "storageType": "u",
                    "pathOrInlineDv": prefix + z85_encoded(identity.bytes),
                    "offset": len(data),
                    "sizeInBytes": len(body),
                    "cardinality": len(list(numbers)),
                }
            )
            data += len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
        folder = self.path / prefix if prefix else self.path
        folder.mkdir(exist_ok=True)
        (folder / f"deletion_vector_{identity}.bin").write_bytes(data)
        return result


def _as_maps(action: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value.items()) if key in {"partitionValues", "configuration"} else value for key, value in action.items()}


def inline(rows: Sequence[int]) -> dict[str, Any]:
    """Return the log descriptor of a deletion vector that is stored in the log."""
    body = encoded(np.array(rows, dtype=np.int64))
    return {"storageType": "i", "pathOrInlineDv": z85_encoded(body), "sizeInBytes": len(body), "cardinality": len(rows)}


def encoded(rows: IntArray) -> bytes:
    """Return ascending numbers as a roaring bitmap, with array containers if sparse and bitset containers if dense."""
    keys = np.unique(rows >> 32)
    out = [MAGIC.to_bytes(4, "little"), len(keys).to_bytes(8, "little")]
    for key in keys.tolist():
        inside = rows[rows >> 32 == key] & 0xFFFFFFFF
        tops = np.unique(inside >> 16)
        parts = [inside[inside >> 16 == top] & 0xFFFF for top in tops.tolist()]
        bodies = [_packed(part) for part in parts]
        heads = np.array([(top, len(part) - 1) for top, part in zip(tops.tolist(), parts, strict=True)], dtype="<u2")
        offsets = 8 + 8 * len(parts) + np.cumsum([0, *(len(body) for body in bodies[:-1])])
        out += [key.to_bytes(4, "little"), NO_RUNS.to_bytes(4, "little"), len(parts).to_bytes(4, "little")]
        out += [heads.tobytes(), offsets.astype("<u4").tobytes(), *bodies]
    return b"".join(out)


def _packed(numbers: IntArray) -> bytes:
    if len(numbers) <= MOST_IN_ARRAY:
        return numbers.astype("<u2").tobytes()
    bits = np.zeros(1 << 16, dtype=np.uint8)
    bits[numbers] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def z85_encoded(data: bytes) -> str:
    """Return bytes as base 85 text, padded with zeros to whole words."""
    words = np.frombuffer(data + bytes(-len(data) % 4), dtype=">u4").astype(np.int64)
    digits = words[:, None] // 85 ** np.arange(4, -1, -1) % 85
    found: bytes = np.frombuffer(ALPHABET, dtype=np.uint8)[digits].tobytes()
    return found.decode()
