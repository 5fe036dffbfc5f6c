"""Datasets that Petastorm wrote are read with the values that Petastorm read, with any pool."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.petastorm import make_batch_reader, make_reader

Corpus = Callable[[str], Path]

KEYS = {
    "legacy-0.4.0": "id",
    "legacy-0.5.1": "id",
    "legacy-0.7.6": "id",
    "modern-0.13.1-images": "image_id",
    "modern-0.13.1-rowgroups": "id",
    "modern-0.13.1-seq": "ts",
    "modern-0.13.1-seq-summary": "ts",
}
LOSSY = {"jpeg"}


def summary(name: str, value: Any) -> Any:
    """Return a value in the form of the reference; a JPEG without its bytes, since decoders differ."""
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        found: dict[str, Any] = {"dtype": value.dtype.str, "shape": list(value.shape)}
        if value.dtype.kind in "SU":
            words = [one.decode() if isinstance(one, bytes) else one for one in value.reshape(-1).tolist()]
            return {**found, "values": words}
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return found if name in LOSSY else {**found, "sha256": digest}
    kind = type(value).__name__
    plain = value.item() if isinstance(value, np.generic) and value.dtype.kind != "M" else str(value)
    return {"py": {"bool": "bool_"}.get(kind, kind), "value": "NaN" if plain != plain else plain}  # noqa: PLR0124 - NaN


def expected(name: str, cell: Any) -> Any:
    """Return a value of the reference in the form of `summary`."""
    if isinstance(cell, dict) and "py" in cell:
        value = cell["value"]
        return {"py": cell["py"], "value": "NaN" if isinstance(value, float) and np.isnan(value) else value}
    return {key: cell[key] for key in ("dtype", "shape")} if name in LOSSY and cell is not None else cell


@pytest.mark.parametrize("pool", ["dummy", "thread", pytest.param("process", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KEYS)
def test_each_row_equals_the_row_that_petastorm_read(corpus: Corpus, name: str, pool: str) -> None:
    """Values have the types, dtypes, shapes and bytes that Petastorm 0.13.1 read."""
    reference = json.loads((corpus("petastorm/reference") / f"{name}.json").read_text())
    place = corpus(f"petastorm/{name}")

    with make_reader(place.as_uri(), reader_pool_type=pool, workers_count=2) as reader:
        rows = {str(getattr(row, KEYS[name])): row for row in reader}

    assert len(rows) == reference["num_rows"]
    for key, cells in reference["rows"].items():
        found = {field: summary(field, value) for field, value in rows[key]._asdict().items()}
        assert found == {field: expected(field, cell) for field, cell in cells.items()}


@pytest.mark.parametrize("name", KEYS)
def test_the_schema_equals_the_stored_schema(corpus: Corpus, name: str) -> None:
    """Names, types, shapes and codecs are those that Petastorm shows."""
    reference = json.loads((corpus("petastorm/reference") / f"{name}.json").read_text())

    with make_reader(corpus(f"petastorm/{name}").as_uri(), reader_pool_type="dummy") as reader:
        fields = reader.schema.fields
        called = reader.schema._name

    assert called == reference["schema_name"]
    assert {
        field.name: {
            "codec": str(field.codec) if field.codec is not None else None,
            "dtype": {"bool": "bool_"}.get(field.numpy_dtype.__name__, field.numpy_dtype.__name__),
            "nullable": field.nullable,
            "shape": list(field.shape),
        }
        for field in fields.values()
    } == reference["fields"]


def test_jpegs_are_close_to_those_that_opencv_decodes(corpus: Corpus) -> None:
    """Decoded JPEGs differ by at most 4 steps of brightness from those of OpenCV, which Petastorm uses."""
    cv2 = pytest.importorskip("cv2")
    url = corpus("petastorm/modern-0.13.1-images").as_uri()

    with make_reader(url, schema_fields=["image_id", "jpeg"]) as reader:
        rows = {str(row.image_id): row.jpeg for row in reader}
    with pytest.warns(UserWarning, match="Please use make_reader"):
        raw = make_batch_reader(url, schema_fields=["image_id", "jpeg"])
    with raw:
        for batch in raw:
            for name, cell in zip(batch.image_id, batch.jpeg, strict=True):
                other = cv2.cvtColor(cv2.imdecode(np.frombuffer(cell, np.uint8), cv2.IMREAD_UNCHANGED), cv2.COLOR_BGR2RGB)
                assert np.abs(rows[str(name)].astype(int) - other.astype(int)).max() <= 4
