"""A dataset as the functions of Petastorm see it: files, stored metadata, schema and partitions."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._engine.parquet.footer import read_schema
from penstock._engine.storage.filesystem import locate, table_destination
from penstock._open import recognised
from penstock.codecs import CellCodec, Codec, Tensor, resolved
from penstock.codecs.scalar import NUMPY
from penstock.errors import ArgumentError, TableNotFoundError
from penstock.formats.parquet import COMMON, ParquetFormat, UnrecognisedParquet, schema_fields
from penstock.formats.petastorm import (
    INDEX_KEY,
    ROW_GROUPS_KEY,
    UNISCHEMA_KEY,
    PetastormFacts,
    PetastormFormat,
    StoredCodec,
    StoredField,
    StoredSchema,
    schema_of,
)
from penstock.formats.petastorm.pickle.names import OLD_PACKAGES
from penstock.model import Place, Snapshot
from penstock.petastorm._impl.spark_types import StoredSparkType, pyspark_types
from penstock.petastorm.codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
)
from penstock.petastorm.unischema import INFERRED, Unischema, UnischemaField, inferred
from penstock.protocols import TableFormat
from penstock.schema import Field, Schema
from penstock.schema.compat import family, storage_of
from penstock.schema.json import KEY, load

__all__ = [
    "Partition",
    "Piece",
    "StoredDataset",
    "log_moved_modules",
    "normalize_url",
    "open_dataset",
    "target_place",
    "unischema_from_stored",
]

logger = logging.getLogger(__name__)


class UnknownCodec(DataframeColumnCodec):
    """A codec of a dataset whose class was not given.

    Args:
        stored: The stored name and options.
    """

    def __init__(self, stored: StoredCodec) -> None:
        """Store the codec."""
        self._stored = stored

    def _raise_unknown(self) -> Any:
        msg = (
            f"The codec {self._stored.name} is not known here. Its columns are read when its class is given: "
            f"make_reader(..., codecs=[{self._stored.name.rpartition('.')[2]}])."
        )
        raise ValueError(msg)

    def encode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - it always raises
        """Raise ValueError."""
        return self._raise_unknown()

    def decode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - it always raises
        """Raise ValueError."""
        return self._raise_unknown()

    def spark_dtype(self) -> Any:
        """Raise ValueError."""
        return self._raise_unknown()

    def __str__(self) -> str:
        """Return the name of the codec."""
        return f"{self._stored.name}()"


def _image_codec(options: Any) -> CompressedImageCodec:
    """Return the codec of images, without its constructor, which needs OpenCV."""
    codec = CompressedImageCodec.__new__(CompressedImageCodec)
    codec._image_codec = str(options.get("image_codec", ".png"))  # noqa: SLF001 - as the constructor does
    codec._quality = options.get("quality", 80)  # noqa: SLF001 - the same
    return codec


def _codec_from_stored(stored: StoredCodec | None) -> Any:
    if stored is None:
        return None
    match stored.name:
        case "petastorm.codecs.ScalarCodec":
            kind = stored.spark_type
            return ScalarCodec(StoredSparkType("" if kind is None else kind.name, {} if kind is None else kind.options))
        case "petastorm.codecs.NdarrayCodec":
            return NdarrayCodec()
        case "petastorm.codecs.CompressedNdarrayCodec":
            return CompressedNdarrayCodec()
        case "petastorm.codecs.CompressedImageCodec":
            return _image_codec(stored.options)
    return UnknownCodec(stored)


def unischema_from_stored(stored: StoredSchema) -> Unischema:
    """Return the Unischema of a stored schema of Petastorm."""
    return _unischema_without_warnings(stored.name, [_field_from_stored(field) for field in stored.fields])


def _field_from_stored(field: StoredField) -> UnischemaField:
    codec = _codec_from_stored(field.codec)
    return UnischemaField(field.name, field.numpy_dtype, field.shape, codec, field.nullable)


class FieldCodec(DataframeColumnCodec):
    """A codec of Penstock without a counterpart in Petastorm, as a codec of a Unischema.

    Args:
        field: The field that has the codec.
    """

    def __init__(self, field: Field) -> None:
        """Store the field."""
        self.field = field

    def encode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - the stored field says the same
        """Return the stored form of a value."""
        codec = self.field.codec
        if isinstance(codec, CellCodec):
            return bytearray(codec.encode(self.field, value))
        return np.asarray(value, self.field.dtype).ravel().tolist() if isinstance(codec, Tensor) else value

    def decode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - the stored field says the same
        """Return the value of its stored form."""
        codec = self.field.codec
        if isinstance(codec, CellCodec):
            return codec.decode(self.field, memoryview(value))
        if isinstance(codec, Tensor):
            return np.array(value, self.field.dtype).reshape([size or 0 for size in self.field.shape])
        return self.field.dtype.type(value) if self.field.dtype in NUMPY else value

    def spark_dtype(self) -> Any:
        """Return the Spark type of bytes.

        Raises:
            ValueError: If cells are not stored as bytes.
        """
        if isinstance(self.field.codec, CellCodec):
            return pyspark_types("FieldCodec.spark_dtype").BinaryType()
        msg = f"Field {self.field.name!r} is stored by {self.field.codec!r}, which has no type of Spark here. Leave it out."
        raise ValueError(msg)

    def __str__(self) -> str:
        """Return the repr of the codec."""
        return repr(self.field.codec)


def unischema_field(field: Field) -> UnischemaField:
    """Return the field of a Unischema for a field of a Penstock table."""
    try:
        (stored,) = schema_of(Schema("", [field]), check_names=False).fields
    except ArgumentError:
        return UnischemaField(field.name, _numpy_type(field), field.shape, FieldCodec(field), field.nullable)
    return _field_from_stored(stored)


def _numpy_type(field: Field) -> Any:
    """Return the NumPy or Python type of the values of a field."""
    if field.dtype.kind != "O" or isinstance(field.codec, CellCodec):
        return field.dtype.type
    return {"decimal": Decimal, "text": np.str_, "bytes": np.bytes_}.get(str(family(storage_of(field))), np.object_)


def _unischema_without_warnings(name: str, fields: Sequence[UnischemaField]) -> Unischema:
    """Return a schema without warnings about field names, which a reader of the dataset cannot change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Unischema(name, fields)


@dataclass(frozen=True, slots=True)
class Piece:
    """A file, or a row group of one.

    Attributes:
        path: The path of the file.
        row_group: The number of the row group; None for the whole file.
        partition_keys: The names and values of partition columns.
    """

    path: str
    filesystem: pafs.FileSystem
    row_group: int | None = None
    partition_keys: tuple[tuple[str, Any], ...] = ()

    def get_metadata(self) -> Any:
        """Return the footer of the file."""
        with self.filesystem.open_input_file(self.path) as source:
            return pq.read_metadata(source)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition column and its values."""

    name: str
    dictionary: pa.Array

    @property
    def keys(self) -> list[Any]:
        """The values."""
        return list(self.dictionary.to_pylist())


class StoredDataset:
    """A dataset at a place. Nothing is read before it is needed.

    Args:
        place: The filesystem and the path.
        partitioned: Whether directory names are partition columns; not so for a list of files.
    """

    def __init__(self, place: Place, *, partitioned: bool = True) -> None:
        """Store the place."""
        self.place, self.partitioned = place, partitioned

    @property
    def fs(self) -> pafs.FileSystem:
        """The filesystem of the files."""
        return self.place.filesystem

    @property
    def paths(self) -> Any:
        """The path of the dataset, or the paths of its files."""
        return list(self.place.paths) or self.place.path

    @cached_property
    def format(self) -> TableFormat:
        """The format of the table; plain Parquet for a list of files."""
        table_format = recognised(self.place) if self.partitioned else ParquetFormat()
        return ParquetFormat() if isinstance(table_format, UnrecognisedParquet) else table_format

    @cached_property
    def _stored(self) -> Snapshot:
        """The table as its format reads it."""
        return self._without_partitions(self.format.snapshot(self.place, None))

    @cached_property
    def raw(self) -> Snapshot:
        """The table as plain Parquet, with nothing decoded."""
        snapshot = self._stored
        if self.is_petastorm:
            snapshot = self._without_partitions(ParquetFormat().snapshot(self.place, None))
        return replace(snapshot, fields={})

    @cached_property
    def facts(self) -> PetastormFacts:
        """The metadata of Petastorm; none for a table with a transaction log."""
        return PetastormFacts() if self.has_log else PetastormFormat().facts(self.place)

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        """The fields of the stored schema of Penstock; none without one."""
        if not self.is_petastorm:
            return self._stored.fields
        return {} if self.common_metadata is None else schema_fields(self.place.url, self.common_metadata)

    @property
    def has_log(self) -> bool:
        """Whether a transaction log lists the files, as in Delta Lake."""
        return not isinstance(self.format, ParquetFormat | PetastormFormat)

    @property
    def is_described(self) -> bool:
        """Whether a schema of Petastorm or of Penstock is stored, so that cells can be decoded."""
        return self.is_petastorm or bool(self.fields)

    def decoding(self, codecs: Sequence[type[Codec]] = ()) -> Snapshot:
        """Return the table with the codecs that decode its columns, some of them classes of the user."""
        return replace(self._stored, fields={name: resolved(field, codecs) for name, field in self._stored.fields.items()})

    def _without_partitions(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot without partition columns, unless the dataset is partitioned."""
        if self.partitioned or not snapshot.files.partitions.column_names:
            return snapshot
        names = set(snapshot.files.partitions.column_names)
        inside = pa.schema([column for column in snapshot.schema if column.name not in names])
        fields = {name: field for name, field in snapshot.fields.items() if name not in names}
        return replace(snapshot, schema=inside, fields=fields, files=replace(snapshot.files, partitions=pa.table({})))

    @property
    def pieces(self) -> list[Piece]:
        """The files."""
        return [Piece(path, self.fs, None, self._partition_keys(at)) for at, path in enumerate(self.raw.files.path.to_pylist())]

    def _partition_keys(self, file: int) -> tuple[tuple[str, Any], ...]:
        return tuple((name, column[file].as_py()) for name, column in _columns(self.raw.files.partitions))

    @property
    def partitions(self) -> list[Partition]:
        """The partition columns."""
        columns = _columns(self.raw.files.partitions)
        return [Partition(name, column.combine_chunks().unique().drop_null()) for name, column in columns]

    @cached_property
    def common_metadata(self) -> pa.Schema | None:
        """The schema in `_common_metadata`; None without that file."""
        path = f"{self.place.path.rstrip('/')}/{COMMON}"
        if self.place.paths or self.fs.get_file_info(path).type != pafs.FileType.File:
            return None
        return read_schema(path, self.fs)

    @property
    def keys(self) -> dict[bytes, bytes]:
        """The metadata in `_common_metadata`."""
        return {} if self.common_metadata is None else dict(self.common_metadata.metadata or {})

    @property
    def is_petastorm(self) -> bool:
        """Whether a schema of Petastorm is stored."""
        return isinstance(self.format, PetastormFormat)

    @property
    def has_row_groups(self) -> bool:
        """Whether the numbers of row groups are stored."""
        return ROW_GROUPS_KEY in self.keys

    @property
    def has_indexes(self) -> bool:
        """Whether indexes of row groups are stored."""
        return INDEX_KEY in self.keys

    @cached_property
    def schema(self) -> Unischema:
        """The schema of rows: stored by Petastorm or by Penstock, or inferred from the columns.

        If both are stored and a field differs, that of Penstock is used, because the engine decodes by it.
        """
        ours = {name: unischema_field(field) for name, field in self.fields.items()}
        if self.is_petastorm and self.facts.schema is not None:
            log_moved_modules(self.keys[UNISCHEMA_KEY])
            theirs = unischema_from_stored(self.facts.schema)
            fields = [_field_to_decode(field, ours.get(name)) for name, field in theirs.fields.items()]
            return _unischema_without_warnings(theirs._name, fields)  # noqa: SLF001 - a Unischema has no other name
        partitions = [] if self.has_log else [(part.name, part.dictionary.type) for part in self.partitions]
        partitions = [(name, kind) for name, kind in partitions if name not in ours]
        columns = pa.schema([column for column in self.raw.schema if column.name not in ours])
        others = inferred(partitions, columns, omit_unsupported_fields=True)
        if not ours:
            return others
        return _unischema_without_warnings(self._schema_name, [*ours.values(), *others.fields.values()])

    @property
    def _schema_name(self) -> str:
        """The name of the stored schema of Penstock, if it is an identifier."""
        text = self.keys.get(KEY)
        if text is None and not self.has_log and len(self.raw.files):
            text = (read_schema(self.raw.files.path[0].as_py(), self.fs).metadata or {}).get(KEY)
        name = "" if text is None else load(text).name
        return name if name.isidentifier() else INFERRED

    def row_group_counts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the stored number of row groups of each file; -1 where it is not stored."""
        return self.facts.counts(self.raw.files.path.to_pylist(), self.place.path)

    def forget(self) -> None:
        """Drop what was read, so that it is read again when it is needed."""
        for name in ("common_metadata", "facts", "fields", "format", "_stored", "schema", "raw"):
            self.__dict__.pop(name, None)


def _field_to_decode(theirs: UnischemaField, ours: UnischemaField | None) -> UnischemaField:
    """Return the field of Petastorm's schema; that of Penstock's if its dtype or shape differs."""
    same = ours is None or (ours.numpy_dtype, ours.shape) == (theirs.numpy_dtype, theirs.shape)
    return theirs if same or ours is None else ours


def _columns(table: pa.Table) -> list[tuple[str, pa.ChunkedArray]]:
    return list(zip(table.column_names, table.columns, strict=True))


def log_moved_modules(data: bytes) -> None:
    """Log the modules of a pickle that have new names."""
    for package in OLD_PACKAGES:
        for module in sorted(set(re.findall(rf"c{re.escape(package)}\.([\w.]+)\n".encode(), data))):
            name = module.decode()
            logger.warning("%s.%s has moved to petastorm.%s. Regenerate metadata.", package, name, name)


def normalize_url(url: Any) -> str:
    """Return a URL without a trailing slash.

    Raises:
        ValueError: If it is not text.
    """
    if not isinstance(url, str):
        raise ValueError(f"directory url must be a string, and is {url!r}.")  # noqa: TRY004 - the type that Petastorm raises
    return url.removesuffix("/")


def path_of(url: str) -> str:
    """Return the path of a URL in its filesystem, with the bucket.

    Percent-encoded characters are not decoded, as in Petastorm.
    """
    scheme, colon, rest = url.partition(":")
    if not colon or "/" in scheme:
        return url
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    if scheme in ("file", "hdfs"):
        return f"{slash}{path}"
    return f"{host}{slash}{path}".rstrip("/")


def open_dataset(dataset_url_or_urls: Any, storage_options: Any = None, filesystem: Any = None) -> StoredDataset:
    """Return the dataset at a URL, or of a list of URLs of files. A list of one URL is that URL.

    Raises:
        ValueError: If a URL has no scheme, or the schemes differ.
        OSError: If the URL does not exist.
    """
    given = list(dataset_url_or_urls) if isinstance(dataset_url_or_urls, (list, tuple)) else [dataset_url_or_urls]
    urls = [normalize_url(url) for url in given]
    if not urls:
        raise ValueError("dataset url list must be non-empty.")
    if filesystem is None:
        _check_urls(urls)
    paths = [_source(url, storage_options, filesystem) for url in urls]
    try:
        place = locate(paths if len(paths) > 1 else paths[0], filesystem=filesystem, options=storage_options or None)
    except TableNotFoundError as error:
        raise FileNotFoundError(f"Passed non-file path: {', '.join(urls)}. {error}") from error
    is_files = len(urls) > 1 or place.filesystem.get_file_info(place.path).type == pafs.FileType.File
    return StoredDataset(place, partitioned=not is_files)


def target_place(dataset_url: Any) -> Place:
    """Return the place of a dataset that will be written.

    Raises:
        ValueError: If the URL has no scheme, or is inside of a table.
    """
    url = normalize_url(dataset_url)
    _check_urls([url])
    return table_destination(_source(url))


def _source(url: str, storage_options: Any = None, filesystem: Any = None) -> str:
    """Return what the engine opens: the URL; for a local file its path, whatever characters are in it."""
    if filesystem is not None:
        return path_of(url)
    if urlsplit(url).scheme == "file" and not storage_options:
        path = path_of(url).rstrip("/") or "/"
        return path if Path(path).exists() else unquote(path)
    return url.rstrip("/")


def _check_urls(urls: Sequence[str]) -> None:
    parts = [urlsplit(url) for url in urls]
    for url, part in zip(urls, parts, strict=True):
        if not part.scheme:
            msg = f'A scheme-less dataset url ({url}) is no longer supported. Please prepend "file://" for local filesystem.'
            raise ValueError(msg)
        if part.scheme not in ("file", "hdfs", "memory") and not part.netloc:
            raise ValueError(f"URLs must be of the form {part.scheme}://bucket/path, and this is {url}.")
    if len({(part.scheme, part.netloc) for part in parts}) > 1:
        raise ValueError(f"The dataset url list must contain url with the same scheme and netloc. Got {', '.join(urls)}.")
