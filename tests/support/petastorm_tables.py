"""Small Petastorm datasets, created for each test, and helpers for the results of readers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from penstock.codecs import Npy, Png
from penstock.formats.petastorm import PetastormFormat

SCHEMA = ps.Schema(
    "Small",
    [
        ps.Field("id", np.int64),
        ps.Field("name", str),
        ps.Field("vector", np.float32, (3,), Npy()),
        ps.Field("image", np.uint8, (4, 6, 3), Png()),
        ps.Field("score", np.int32, nullable=True),
    ],
)


def row(number: int) -> dict[str, Any]:
    """Return one row."""
    return {
        "id": number,
        "name": f"row {number}",
        "vector": np.full(3, number, np.float32),
        "image": np.full((4, 6, 3), number % 256, np.uint8),
        "score": None if number % 5 == 4 else 10 * number,
    }


def small(place: Path, rows: int = 40, group: int = 10) -> str:
    """Write a Petastorm dataset and return its URL."""
    ps.write(str(place), SCHEMA, map(row, range(rows)), format=PetastormFormat(), row_group_rows=group)
    return place.as_uri()


def partitioned(place: Path, rows: int = 40, group: int = 10) -> str:
    """Write a Petastorm dataset with four partitions by id modulo 4, and return its URL."""
    schema = ps.Schema("Parted", [ps.Field("id", np.int64), ps.Field("part", str)])
    generated = ({"id": number, "part": f"p_{number % 4}"} for number in range(rows))
    ps.write(str(place), schema, generated, format=PetastormFormat(), row_group_rows=group, partition_by=["part"])
    return place.as_uri()


def plain(place: Path, columns: Any, group: int = 10) -> str:
    """Write a plain Parquet file to a directory, and return the URL of the directory."""
    place.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, place / "part-0.parquet", row_group_size=group)
    return place.as_uri()


def ids(items: Any) -> list[int]:
    """Return the ids of rows, or of batches in order."""
    found: list[int] = []
    for item in items:
        found += np.atleast_1d(np.asarray(item.id)).tolist()
    return found


def pairs(numbers: Sequence[int], size: int) -> list[list[int]]:
    """Return the numbers in groups of the given size."""
    return [list(numbers[start : start + size]) for start in range(0, len(numbers), size)]
