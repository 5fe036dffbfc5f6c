"""What Petastorm's functions call a dataset: files at a place, what was stored of them, and their row groups in order."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._engine.footers import read_schema
from penstock._engine.storage import locate, place_of_table
from penstock.codecs import Codec, resolved
from penstock.errors import TableNotFoundError
from penstock.formats._pickle_names import OLD_PACKAGES
from penstock.formats.parquet import COMMON, ParquetFormat
from penstock.formats.petastorm import (
    INDEX_KEY,
    ROW_GROUPS_KEY,
    UNISCHEMA_KEY,
    PetastormFacts,
    PetastormFormat,
    StoredCodec,
    StoredSchema,
)
from penstock.model import Place, Snapshot
from penstock.petastorm._spark_types import StandIn
from penstock.petastorm.codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
)
from penstock.petastorm.unischema import Unischema, UnischemaField, inferred

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that is taken whoever wrote the dataset was told
        return Unischema(stored.name, fields)


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
    def raw(self) -> Snapshot:
        """The files as they lie, with nothing decoded."""
        found = ParquetFormat().snapshot(self.place, None)
        return self._checked(replace(found, fields={}))

    @cached_property
    def facts(self) -> PetastormFacts:
        """What Petastorm has stored of the files."""
        return PetastormFormat().facts(self.place)

    def decoding(self, codecs: Sequence[type[Codec]] = ()) -> Snapshot:
        """Return the files with their columns decoded."""
        found = PetastormFormat().snapshot(self.place, None)
        fields = {name: resolved(field, codecs) for name, field in found.fields.items()}
        return self._checked(replace(found, fields=fields))

    def _checked(self, snapshot: Snapshot) -> Snapshot:
        if self.partitioned or not snapshot.files.partitions.column_names:
            return snapshot
        names = set(snapshot.files.partitions.column_names)
        inside = pa.schema([column for column in snapshot.schema if column.name not in names])
        return replace(snapshot, schema=inside, files=replace(snapshot.files, partitions=pa.table({})))

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
        return UNISCHEMA_KEY in self.keys

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
        """The stored schema, or the one that follows from the columns."""
        if self.is_petastorm and self.facts.schema is not None:
            tell_of_moved(self.keys[UNISCHEMA_KEY])
            return unischema_of(self.facts.schema)
        partitions = [(part.name, part.dictionary.type) for part in self.partitions]
        return inferred(partitions, self.raw.schema, omit_unsupported_fields=True)

    def row_group_counts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return how many row groups each file has, as far as Petastorm has stored it; -1 where it has not."""
        return self.facts.counts(self.raw.files.path.to_pylist(), self.place.path)

    def forget(self) -> None:
        """Read anew what is stored, the next time that somebody asks."""
        for name in ("common_metadata", "facts", "schema", "raw"):
            self.__dict__.pop(name, None)


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
    """Return the dataset at a URL, or of a list of URLs of files.

    Raises:
        ValueError: If a URL has no scheme, or URLs differ in it.
        OSError: If nothing lies there.
    """
    several = isinstance(dataset_url_or_urls, (list, tuple))
    urls = [normalized(url) for url in dataset_url_or_urls] if several else [normalized(dataset_url_or_urls)]
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
    return place_of_table(_source(url))


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
