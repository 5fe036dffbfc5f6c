"""`petastorm.fs_utils`: filesystems of URLs.

`make_reader` does not use this module, but the filesystems of `penstock.open`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn
from urllib.parse import ParseResult, urlparse

from penstock.petastorm._impl.dataset import normalize_url
from penstock.petastorm.hdfs.namenode import HdfsConnector, HdfsNamenodeResolver

__all__ = ["FilesystemResolver", "get_dataset_path", "get_filesystem_and_path_or_paths", "normalize_dir_url"]


def get_dataset_path(parsed_url: ParseResult) -> str:
    """Return the path of a parsed URL in its filesystem, with the bucket."""
    if parsed_url.scheme.lower() in ("hdfs", "file"):
        return parsed_url.path
    import fsspec

    return str(fsspec.get_filesystem_class(parsed_url.scheme)._strip_protocol(parsed_url.geturl()))  # noqa: SLF001 - fsspec's own


def normalize_dir_url(dataset_url: Any) -> str:
    """Return a URL without a trailing slash.

    Raises:
        ValueError: If it is not text.
    """
    return normalize_url(dataset_url)


class FilesystemResolver:
    """The filesystem of a URL.

    Args:
        dataset_url: The URL, as text or parsed.
        hadoop_configuration: The settings of Hadoop; by default those of the installed Hadoop.
        connector: Connects to Hadoop.
        hdfs_driver: "libhdfs3" to find the name nodes in those settings, "libhdfs" to let the library of Hadoop find them.
        user: The user of Hadoop.
        storage_options: Options for fsspec.

    Raises:
        ValueError: If the URL has no scheme, or its bucket is missing.
    """

    def __init__(
        self,
        dataset_url: Any,
        hadoop_configuration: Any = None,
        connector: Any = HdfsConnector,
        hdfs_driver: str = "libhdfs3",
        user: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Open the filesystem."""
        url = urlparse(dataset_url) if isinstance(dataset_url, str) else dataset_url
        self._url = url
        if not url.scheme:
            msg = f"A scheme-less dataset url ({url.geturl()}) is no longer supported. "
            raise ValueError(msg + 'Please prepend "file://" for local filesystem.')
        if url.scheme == "hdfs":
            self._factory = self._hadoop_factory(hadoop_configuration, connector, hdfs_driver, user)
        else:
            self._factory = _fsspec_factory(url, storage_options)
        self._filesystem = self._factory()

    def _hadoop_factory(self, settings: Any, connector: Any, driver: str, user: str | None) -> Callable[[], Any]:
        """Return a function that opens the filesystem of Hadoop."""
        if driver != "libhdfs3":
            return partial(connector.hdfs_connect_namenode, self._url, driver, user=user)
        resolver = HdfsNamenodeResolver(settings)
        if self._url.netloc:
            nodes = resolver.resolve_hdfs_name_service(self._url.netloc.partition(":")[0])
            if not nodes:
                return partial(connector.hdfs_connect_namenode, self._url, user=user)
        else:
            service, nodes = resolver.resolve_default_hdfs_service()
            self._url = urlparse(f"hdfs://{service}{self._url.path}")
        return partial(connector.connect_to_either_namenode, nodes, user=user)

    def parsed_dataset_url(self) -> Any:
        """Return the parsed URL."""
        return self._url

    def get_dataset_path(self) -> str:
        """Return the path in the filesystem."""
        return get_dataset_path(self._url)

    def filesystem(self) -> Any:
        """Return the filesystem."""
        return self._filesystem

    def filesystem_factory(self) -> Callable[[], Any]:
        """Return a function that opens the filesystem again; it can be pickled."""
        return self._factory

    def __getstate__(self) -> NoReturn:
        """Raise RuntimeError: a filesystem cannot be pickled, but `filesystem_factory()` can."""
        raise RuntimeError("Pickling FilesystemResolver is not supported. Send what filesystem_factory() returns.")


def _fsspec_factory(url: Any, storage_options: Mapping[str, Any] | None) -> Callable[[], Any]:
    """Return a function that opens a filesystem of fsspec."""
    import fsspec

    if url.scheme != "file" and not url.netloc:
        raise ValueError(f"URLs must be of the form {url.scheme}://bucket/path, and this is {url.geturl()}.")
    kind = fsspec.get_filesystem_class(url.scheme)
    return partial(kind, **{**kind._get_kwargs_from_urls(url.geturl()), **(storage_options or {})})  # noqa: SLF001 - fsspec's own


def get_filesystem_and_path_or_paths(
    url_or_urls: Any, hdfs_driver: str = "libhdfs3", storage_options: Mapping[str, Any] | None = None, filesystem: Any = None
) -> tuple[Any, Any]:
    """Return the filesystem of a URL or a list of URLs, and the path or the list of paths.

    Raises:
        ValueError: If the URLs have different schemes or hosts.
    """
    urls = url_or_urls if isinstance(url_or_urls, list) else [url_or_urls]
    parsed = [urlparse(url) for url in urls]
    if len({(url.scheme, url.netloc) for url in parsed}) > 1:
        raise ValueError(f"The dataset url list must contain url with the same scheme and netloc. Got {', '.join(urls)}.")
    if filesystem is None:
        filesystem = FilesystemResolver(urls[0], hdfs_driver=hdfs_driver, storage_options=storage_options).filesystem()
    paths = [get_dataset_path(url) if url.scheme else url.path for url in parsed]
    return filesystem, paths if isinstance(url_or_urls, list) else paths[0]
