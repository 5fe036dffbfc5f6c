"""Codecs that users wrote for Petastorm: an unknown one is reported, and one that is passed to a reader is used."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import petastorm_pickles
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import ArgumentError
from penstock.petastorm import make_batch_reader, make_reader
from penstock.petastorm.codecs import DataframeColumnCodec
from penstock.petastorm.utils import DecodeFieldError, decode_row


class Squash(DataframeColumnCodec):
    """A user's codec, as written for Petastorm."""

    _factor = 1

    def encode(self, unischema_field: Any, value: Any) -> bytes:
        """Return bytes."""
        return bytes((value * self._factor).astype(unischema_field.numpy_dtype))

    def decode(self, unischema_field: Any, value: bytes) -> Any:
        """Return an array."""
        return np.frombuffer(value, unischema_field.numpy_dtype) / np.float32(self._factor)

    def spark_dtype(self) -> None:
        """Return nothing; no test calls it."""


def test_a_codec_may_leave_out_methods() -> None:
    """A codec may leave out methods. Calling a missing method raises NotImplementedError that names it."""

    class Reads(DataframeColumnCodec):
        def decode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - as Petastorm calls it
            return value

    assert Reads().decode(None, 3) == 3
    assert str(Reads()) == "Reads()"
    with pytest.raises(NotImplementedError, match="Reads does not define spark_dtype"):
        Reads().spark_dtype()


Squash.__module__, Squash.__qualname__ = "our_project.codecs", "Squash"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A dataset with a column that a user's codec wrote."""
    cells = [np.array([3, 6], np.float32).tobytes(), np.array([9, 12], np.float32).tobytes()]
    table = pa.table({"id": pa.array([7, 8], pa.int32()), "x": cells})
    pq.write_table(table, tmp_path / "part-0.parquet")
    metadata = {b"dataset-toolkit.unischema.v1": base64.b64decode(petastorm_pickles.OWN_CODEC[4])}
    pq.write_metadata(table.schema.with_metadata(metadata), tmp_path / "_common_metadata")
    return tmp_path.as_uri()


def test_an_unknown_codec_is_named(url: str) -> None:
    """Decoding with an unknown codec raises an error that names the codec and says how to pass it."""
    with make_reader(url) as reader:
        assert str(reader.schema.x.codec) == "our_project.codecs.Squash()"
        with pytest.raises(DecodeFieldError, match=r"written with the unknown codec 'our_project.codecs.Squash'"):
            next(reader)
        with pytest.raises(ValueError, match=r"make_reader\(..., codecs=\[Squash\]\)"):
            decode_row({"x": b""}, reader.schema)


@pytest.mark.parametrize("pool", ["dummy", "thread"])
def test_a_codec_that_is_passed_to_a_reader_decodes(url: str, pool: str) -> None:
    """A class in `codecs` is matched by its stored name and gets the stored attributes."""
    with make_reader(url, codecs=[Squash], reader_pool_type=pool) as reader:
        rows = list(reader)
    with make_batch_reader(url, codecs=[Squash], decode=True) as batches:
        (batch,) = list(batches)

    assert [row.x.tolist() for row in rows] == [[1, 2], [3, 4]]
    assert np.stack(list(batch.x)).tolist() == [[1, 2], [3, 4]]


def test_a_value_that_is_not_a_codec_raises(url: str) -> None:
    """A value in `codecs` that is not a codec class raises ArgumentError."""
    with pytest.raises(ArgumentError, match="codecs got 5"):
        make_reader(url, codecs=[5])
