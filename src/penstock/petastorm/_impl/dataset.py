"""What Petastorm's functions call a dataset: files at a place, what was stored of them, and their row groups in order."""

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
from penstock.formats.parquet import COMMON, ParquetFormat, Unclaimed, told_fields
from penstock.formats.petastorm import (
    INDEX_KEY,
    ROW_GROUPS_KEY,
    UNISCHEMA_KEY,
    PetastormFacts,
    PetastormFormat,
    StoredCodec,
    StoredSchema,
    schema_of,
)
from penstock.formats.petastorm.pickle.names import OLD_PACKAGES
from penstock.model import Place, Snapshot
from penstock.petastorm._impl.spark_types import StandIn, pyspark_types
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

__all__ = ["Partition", "Piece", "StoredDataset", "normalized", "opened", "target_of", "tell_of_moved", "unischema_of"]

logger = logging.getLogger(__name__)


class UnknownCodec(DataframeColumnCodec):
    """A codec that a dataset was written with and nobody has told us of."""

    def __init__(self, stored: StoredCodec) -> None:
        """Store what is known of it."""
        self._stored = stored

    def _refuse(self) -> Any:
        msg = (
            f"The codec {self._stored.name} is not known here. Its columns are read when its class is given: "
            f"make_reader(..., codecs=[{self._stored.name.rpartition('.')[2]}])."
        )
        raise ValueError(msg)

    def encode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - it does nothing
        """Refuse."""
        return self._refuse()

    def decode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - it does nothing
        """Refuse."""
        return self._refuse()

    def spark_dtype(self) -> Any:
        """Refuse."""
        return self._refuse()

    def __str__(self) -> str:
        """Return its name."""
        return f"{self._stored.name}()"


def _image(options: Any) -> CompressedImageCodec:
    """Return the codec of images, which need not be made as it was when OpenCV is not there to write any."""
    made = CompressedImageCodec.__new__(CompressedImageCodec)
    made._image_codec = str(options.get("image_codec", ".png"))  # noqa: SLF001 - what its constructor does
    made._quality = options.get("quality", 80)  # noqa: SLF001 - the same
    return made


def codec_of(stored: StoredCodec | None) -> Any:
    """Return the codec of Petastorm that a dataset stores."""
    if stored is None:
        return None
    match stored.name:
        case "petastorm.codecs.ScalarCodec":
            kind = stored.spark_type
            return ScalarCodec(StandIn("" if kind is None else kind.name, {} if kind is None else kind.options))
        case "petastorm.codecs.NdarrayCodec":
            return NdarrayCodec()
        case "petastorm.codecs.CompressedNdarrayCodec":
            return CompressedNdarrayCodec()
        case "petastorm.codecs.CompressedImageCodec":
            return _image(stored.options)
    return UnknownCodec(stored)


def unischema_of(stored: StoredSchema) -> Unischema:
    """Return the schema that a dataset stores."""
    fields = [UnischemaField(one.name, one.numpy_dtype, one.shape, codec_of(one.codec), one.nullable) for one in stored.fields]
    return _silent(stored.name, fields)


class FieldCodec(DataframeColumnCodec):
    """A codec of Penstock that Petastorm has no counterpart for, as a codec of a Unischema.

    Args:
        field: The field that it stores.
    """

    def __init__(self, field: Field) -> None:
        """Store the field."""
        self.field = field

    def encode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - the stored field says the same
        """Return a value as it is stored."""
        codec = self.field.codec
        if isinstance(codec, CellCodec):
            return bytearray(codec.encode(self.field, value))
        return np.asarray(value, self.field.dtype).ravel().tolist() if isinstance(codec, Tensor) else value

    def decode(self, unischema_field: Any, value: Any) -> Any:  # noqa: ARG002 - the stored field says the same
        """Return what was stored."""
        codec = self.field.codec
        if isinstance(codec, CellCodec):
            return codec.decode(self.field, memoryview(value))
        if isinstance(codec, Tensor):
            return np.array(value, self.field.dtype).reshape([size or 0 for size in self.field.shape])
        return self.field.dtype.type(value) if self.field.dtype in NUMPY else value

    def spark_dtype(self) -> Any:
        """Return the type of bytes, where cells are bytes.

        Raises:
            ValueError: If they are not.
        """
        if isinstance(self.field.codec, CellCodec):
            return pyspark_types("FieldCodec.spark_dtype").BinaryType()
        msg = f"Field {self.field.name!r} is stored by {self.field.codec!r}, which has no type of Spark here. Leave it out."
        raise ValueError(msg)

    def __str__(self) -> str:
        """Return how the codec is made."""
        return repr(self.field.codec)


def unischema_field(field: Field) -> UnischemaField:
    """Return a field of a table that Penstock wrote as one of a Unischema."""
    try:
        (stored,) = schema_of(Schema("", [field]), check_names=False).fields
    except ArgumentError:
        return UnischemaField(field.name, _numpy_type(field), field.shape, FieldCodec(field), field.nullable)
    return UnischemaField(stored.name, stored.numpy_dtype, stored.shape, codec_of(stored.codec), stored.nullable)


def _numpy_type(field: Field) -> Any:
    """Return the type of NumPy, or of Python, that the values of a field are told by."""
    if field.dtype.kind != "O" or isinstance(field.codec, CellCodec):
        return field.dtype.type
    return {"decimal": Decimal, "text": np.str_, "bytes": np.bytes_}.get(str(family(storage_of(field))), np.object_)


def _silent(name: str, fields: Sequence[UnischemaField]) -> Unischema:
    """Return a schema without a word about names that are taken: whoever wrote the dataset could have been told."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Unischema(name, fields)


@dataclass(frozen=True, slots=True)
class Piece:
    """A file, or a row group of one.

    Attributes:
        path: Where the file lies.
        row_group: The number of the row group in it; None for all.
        partition_keys: What directories say of it.
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
    """A column that directories name, and its values."""

    name: str
    dictionary: pa.Array

    @property
    def keys(self) -> list[Any]:
        """The values."""
        return list(self.dictionary.to_pylist())


class StoredDataset:
    """Files at a place.

    Args:
        place: Where they lie.
        partitioned: Whether the names of directories are columns, as they are not where single files were named.
    """

    def __init__(self, place: Place, *, partitioned: bool = True) -> None:
        """Store the place; nothing is read yet."""
        self.place, self.partitioned = place, partitioned

    @property
    def fs(self) -> pafs.FileSystem:
        """Where the files lie."""
        return self.place.filesystem

    @property
    def paths(self) -> Any:
        """The path of the dataset, or the paths of its files."""
        return list(self.place.paths) or self.place.path

    @cached_property
    def format(self) -> TableFormat:
        """The format of the table; single files are taken as they lie."""
        found = recognised(self.place) if self.partitioned else ParquetFormat()
        return ParquetFormat() if isinstance(found, Unclaimed) else found

    @cached_property
    def _stored(self) -> Snapshot:
        """The table as its format reads it."""
        return self._checked(self.format.snapshot(self.place, None))

    @cached_property
    def raw(self) -> Snapshot:
        """The files as they lie, with nothing decoded."""
        found = self._checked(ParquetFormat().snapshot(self.place, None)) if self.is_petastorm else self._stored
        return replace(found, fields={})

    @cached_property
    def facts(self) -> PetastormFacts:
        """What Petastorm has stored of the files; nothing of a table whose log names them."""
        return PetastormFacts() if self.has_log else PetastormFormat().facts(self.place)

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        """What a schema of Penstock says of columns; nothing where none is stored."""
        if not self.is_petastorm:
            return self._stored.fields
        return {} if self.common_metadata is None else told_fields(self.place.url, self.common_metadata)

    @property
    def has_log(self) -> bool:
        """Whether a log names the files, as that of Delta Lake does."""
        return not isinstance(self.format, ParquetFormat | PetastormFormat)

    @property
    def is_described(self) -> bool:
        """Whether a schema is stored, Petastorm's or Penstock's, so that rows can be decoded."""
        return self.is_petastorm or bool(self.fields)

    def decoding(self, codecs: Sequence[type[Codec]] = ()) -> Snapshot:
        """Return the files with their columns decoded."""
        return replace(self._stored, fields={name: resolved(field, codecs) for name, field in self._stored.fields.items()})

    def _checked(self, snapshot: Snapshot) -> Snapshot:
        if self.partitioned or not snapshot.files.partitions.column_names:
            return snapshot
        names = set(snapshot.files.partitions.column_names)
        inside = pa.schema([column for column in snapshot.schema if column.name not in names])
        fields = {name: field for name, field in snapshot.fields.items() if name not in names}
        return replace(snapshot, schema=inside, fields=fields, files=replace(snapshot.files, partitions=pa.table({})))

    @property
    def pieces(self) -> list[Piece]:
        """The files."""
        return [Piece(path, self.fs, None, self._keys(at)) for at, path in enumerate(self.raw.files.path.to_pylist())]

    def _keys(self, file: int) -> tuple[tuple[str, Any], ...]:
        return tuple((name, column[file].as_py()) for name, column in _columns(self.raw.files.partitions))

    @property
    def partitions(self) -> list[Partition]:
        """The columns that directories name."""
        columns = _columns(self.raw.files.partitions)
        return [Partition(name, column.combine_chunks().unique().drop_null()) for name, column in columns]

    @cached_property
    def common_metadata(self) -> pa.Schema | None:
        """What `_common_metadata` says; None where there is none."""
        path = f"{self.place.path.rstrip('/')}/{COMMON}"
        if self.place.paths or self.fs.get_file_info(path).type != pafs.FileType.File:
            return None
        return read_schema(path, self.fs)

    @property
    def keys(self) -> dict[bytes, bytes]:
        """What `_common_metadata` has besides columns."""
        return {} if self.common_metadata is None else dict(self.common_metadata.metadata or {})

    @property
    def is_petastorm(self) -> bool:
        """Whether a schema of Petastorm is stored."""
        return isinstance(self.format, PetastormFormat)

    @property
    def has_row_groups(self) -> bool:
        """Whether Petastorm has stored how many row groups files have."""
        return ROW_GROUPS_KEY in self.keys

    @property
    def has_indexes(self) -> bool:
        """Whether indexes of row groups are stored."""
        return INDEX_KEY in self.keys

    @cached_property
    def schema(self) -> Unischema:
        """The schema of rows: Petastorm's, Penstock's where that says otherwise, or the one that follows from the columns.

        What Penstock's schema says of a column counts, for the engine decodes by it.
        """
        told = {name: unischema_field(field) for name, field in self.fields.items()}
        if self.is_petastorm and self.facts.schema is not None:
            tell_of_moved(self.keys[UNISCHEMA_KEY])
            found = unischema_of(self.facts.schema)
            return _silent(found._name, [_agreed(field, told.get(name)) for name, field in found.fields.items()])  # noqa: SLF001 - the name, which has no other way
        partitions = [] if self.has_log else [(part.name, part.dictionary.type) for part in self.partitions]
        left = pa.schema([column for column in self.raw.schema if column.name not in told])
        others = inferred([one for one in partitions if one[0] not in told], left, omit_unsupported_fields=True)
        return _silent(self._schema_name, [*told.values(), *others.fields.values()]) if told else others

    @property
    def _schema_name(self) -> str:
        """What the stored schema of Penstock is called, where a type of rows can have that name."""
        text = self.keys.get(KEY)
        if text is None and not self.has_log and len(self.raw.files):
            text = (read_schema(self.raw.files.path[0].as_py(), self.fs).metadata or {}).get(KEY)
        name = "" if text is None else load(text).name
        return name if name.isidentifier() else INFERRED

    def row_group_counts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return how many row groups each file has, as far as Petastorm has stored it; -1 where it has not."""
        return self.facts.counts(self.raw.files.path.to_pylist(), self.place.path)

    def forget(self) -> None:
        """Read anew what is stored, the next time that somebody asks."""
        for name in ("common_metadata", "facts", "fields", "format", "_stored", "schema", "raw"):
            self.__dict__.pop(name, None)


def _agreed(theirs: UnischemaField, ours: UnischemaField | None) -> UnischemaField:
    """Return a field of Petastorm's schema, or that of Penstock's where it has other values."""
    same = ours is None or (ours.numpy_dtype, ours.shape) == (theirs.numpy_dtype, theirs.shape)
    return theirs if same or ours is None else ours


def _columns(table: pa.Table) -> list[tuple[str, pa.ChunkedArray]]:
    return list(zip(table.column_names, table.columns, strict=True))


def tell_of_moved(data: bytes) -> None:
    """Log which modules of a pickle have other names today."""
    for package in OLD_PACKAGES:
        for module in sorted(set(re.findall(rf"c{re.escape(package)}\.([\w.]+)\n".encode(), data))):
            name = module.decode()
            logger.warning("%s.%s has moved to petastorm.%s. Regenerate metadata.", package, name, name)


def normalized(url: Any) -> str:
    """Return a URL without the slash that it ends with.

    Raises:
        ValueError: If it is no text.
    """
    if not isinstance(url, str):
        raise ValueError(f"directory url must be a string, and is {url!r}.")  # noqa: TRY004 - the type that Petastorm raises
    return url.removesuffix("/")


def path_of(url: str) -> str:
    """Return the path of a URL in its filesystem: with the bucket, where there is one.

    Characters that a URL writes otherwise are taken as they stand, as Petastorm takes them.
    """
    scheme, colon, rest = url.partition(":")
    if not colon or "/" in scheme:
        return url
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    if scheme in ("file", "hdfs"):
        return f"{slash}{path}"
    return f"{host}{slash}{path}".rstrip("/")


def opened(dataset_url_or_urls: Any, storage_options: Any = None, filesystem: Any = None) -> StoredDataset:
    """Return the dataset at a URL, or of a list of URLs of files. A list of one URL is that URL.

    Raises:
        ValueError: If a URL has no scheme, or URLs differ in it.
        OSError: If nothing lies there.
    """
    given = list(dataset_url_or_urls) if isinstance(dataset_url_or_urls, (list, tuple)) else [dataset_url_or_urls]
    urls, several = [normalized(url) for url in given], len(given) > 1
    if not urls:
        raise ValueError("dataset url list must be non-empty.")
    if filesystem is None:
        _check_urls(urls)
    paths = [_source(url, storage_options, filesystem) for url in urls]
    try:
        place = locate(paths if several else paths[0], filesystem=filesystem, options=storage_options or None)
    except TableNotFoundError as error:
        raise FileNotFoundError(f"Passed non-file path: {', '.join(urls)}. {error}") from error
    single = several or place.filesystem.get_file_info(place.path).type == pafs.FileType.File
    return StoredDataset(place, partitioned=not single)


def target_of(dataset_url: Any) -> Place:
    """Return where a dataset is to be written, at a URL.

    Raises:
        ValueError: If it has no scheme, or lies inside of a table.
    """
    url = normalized(dataset_url)
    _check_urls([url])
    return table_destination(_source(url))


def _source(url: str, storage_options: Any = None, filesystem: Any = None) -> str:
    """Return what the engine opens: a path where it is one, whatever characters are in it."""
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
