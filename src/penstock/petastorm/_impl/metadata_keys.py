"""The metadata of a dataset in `_common_metadata`, and the stored form of a Unischema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._engine.parquet.footer import read_schema
from penstock.formats.parquet import COMMON
from penstock.formats.petastorm import SparkType, StoredCodec, StoredField, StoredSchema
from penstock.formats.petastorm.keys import SUMMARY
from penstock.petastorm._impl.dataset import FieldCodec, StoredDataset, UnknownCodec
from penstock.petastorm._impl.spark_types import spark_name, spark_options
from penstock.petastorm.codecs import CompressedImageCodec, ScalarCodec
from penstock.petastorm.unischema import Unischema

__all__ = ["check_files", "store_keys", "stored_schema"]


def store_keys(dataset: StoredDataset, keys: Mapping[bytes, bytes | None]) -> None:
    """Add keys to the metadata of a dataset; a key whose value is None is removed.

    Raises:
        ValueError: If the table has a transaction log.
    """
    check_files(dataset)
    base, filesystem = dataset.place.path.rstrip("/"), dataset.fs
    schema = dataset.common_metadata
    if schema is None:
        summary = f"{base}/{SUMMARY}"
        has_summary = filesystem.get_file_info(summary).type == pafs.FileType.File
        schema = read_schema(summary if has_summary else dataset.pieces[0].path, filesystem)
    metadata = {key: value for key, value in {**(schema.metadata or {}), **keys}.items() if value is not None}
    with filesystem.open_output_stream(f"{base}/{COMMON}") as target:
        pq.write_metadata(schema.with_metadata(metadata), target)
    remove_checksum(filesystem, base, COMMON)
    dataset.forget()


def check_files(dataset: StoredDataset) -> None:
    """Check that a table has no transaction log; readers of such tables ignore `_common_metadata`.

    Raises:
        ValueError: If it has one.
    """
    if dataset.has_log:
        msg = (
            f"{dataset.place.url} is a table of the format {dataset.format.name}, whose log names its files; expected Parquet "
            "files. Copy it first: petastorm.tools.copy_dataset.copy_dataset(None, source_url, target_url, ...)."
        )
        raise ValueError(msg)


def remove_checksum(filesystem: pafs.FileSystem, base: str, name: str) -> None:
    """Remove the checksum file of Hadoop, which does not match the new content."""
    checksum = f"{base}/.{name}.crc"
    if filesystem.get_file_info(checksum).type == pafs.FileType.File:
        filesystem.delete_file(checksum)


def stored_schema(schema: Unischema) -> StoredSchema:
    """Return the stored form of a Unischema."""
    fields = (
        StoredField(field.name, field.numpy_dtype, tuple(field.shape), _stored_codec(field.codec), bool(field.nullable))
        for field in schema.fields.values()
    )
    return StoredSchema(schema._name, tuple(fields))  # noqa: SLF001 - a Unischema has no other name


def _stored_codec(codec: Any) -> StoredCodec | None:
    if codec is None:
        return None
    if isinstance(codec, UnknownCodec):
        return codec._stored  # noqa: SLF001 - of the same package
    if isinstance(codec, FieldCodec):
        return StoredCodec(f"penstock.codecs.{codec}")
    if type(codec).__module__ == "penstock.petastorm.codecs":
        name = f"petastorm.codecs.{type(codec).__name__}"
    else:
        name = f"{type(codec).__module__}.{type(codec).__qualname__}"
    if isinstance(codec, ScalarCodec):
        kind = codec._spark_type  # noqa: SLF001 - of the same package
        return StoredCodec(name, {"spark_type": SparkType(spark_name(kind), spark_options(kind))})
    if isinstance(codec, CompressedImageCodec):
        return StoredCodec(name, {"image_codec": codec._image_codec, "quality": codec._quality})  # noqa: SLF001 - the same
    return StoredCodec(name)
