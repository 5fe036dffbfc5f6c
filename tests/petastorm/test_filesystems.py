"""Filesystems of URLs, and Hadoop clusters with several name nodes, tested without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import cloudpickle
import pytest

from penstock.petastorm.fs_utils import (
    FilesystemResolver,
    get_dataset_path,
    get_filesystem_and_path_or_paths,
    normalize_dir_url,
)
from penstock.petastorm.hdfs.namenode import (
    HAHdfsClient,
    HdfsConnectError,
    HdfsConnector,
    HdfsNamenodeResolver,
    MaxFailoversExceeded,
    namenode_failover,
)

SETTINGS = {
    "fs.defaultFS": "hdfs://cluster",
    "dfs.ha.namenodes.cluster": "one,two",
    "dfs.namenode.rpc-address.cluster.one": "first:8020",
    "dfs.namenode.rpc-address.cluster.two": "second:8020",
}


class Node:
    """A filesystem of one name node that fails a given number of times."""

    def __init__(self, name: str, failures: list[int]) -> None:
        """Store the name, and the number of failures that nodes share."""
        self.name, self.failures = name, failures

    def ls(self, path: str) -> str:
        """Return the node's name and the path, or fail."""
        if self.failures[0]:
            self.failures[0] -= 1
            raise OSError("standby")
        return f"{self.name}{path}"


def connector(*, absent: tuple[str, ...] = (), failures: int = 0) -> type[HdfsConnector]:
    """Return a connector class for name nodes; the absent ones refuse connections."""
    remaining = [failures]

    class Connector(HdfsConnector):
        @classmethod
        def hdfs_connect_namenode(cls, url: Any, driver: str = "libhdfs3", user: str | None = None) -> Any:
            if url.hostname in absent:
                raise OSError("nobody")
            return Node(f"{driver}-{user}@{url.hostname}", remaining)

    return Connector


@pytest.mark.parametrize(("url", "expected"), [("file:///a/b/", "file:///a/b"), ("s3://b/k//", "s3://b/k/"), ("x", "x")])
def test_one_trailing_slash_is_removed(url: str, expected: str) -> None:
    """`normalize_dir_url` removes one trailing slash, and raises ValueError if the URL is not text."""
    assert normalize_dir_url(url) == expected
    with pytest.raises(ValueError, match="directory url must be a string"):
        normalize_dir_url(None)


@pytest.mark.parametrize(
    ("url", "path"), [("file:///a/b", "/a/b"), ("hdfs://host:1/a/b", "/a/b"), ("memory://bucket/key", "/bucket/key")]
)
def test_paths_include_the_bucket(url: str, path: str) -> None:
    """The path of a dataset includes the bucket of an object store, and not the host of a Hadoop cluster."""
    assert get_dataset_path(urlparse(url)) == path


def test_local_files_are_read(tmp_path: Path) -> None:
    """A resolver and its pickled factory open local files. Pickling the resolver itself raises RuntimeError."""
    (tmp_path / "file").write_text("here")
    resolver = FilesystemResolver(tmp_path.as_uri())

    again = cloudpickle.loads(cloudpickle.dumps(resolver.filesystem_factory()))()

    assert resolver.get_dataset_path() == str(tmp_path)
    assert resolver.parsed_dataset_url().scheme == "file"
    for filesystem in (resolver.filesystem(), again):
        assert filesystem.cat(f"{tmp_path}/file") == b"here"
    with pytest.raises(RuntimeError, match="Pickling FilesystemResolver is not supported"):
        cloudpickle.dumps(resolver)


def test_the_scheme_of_a_url_selects_the_filesystem() -> None:
    """The scheme of a URL selects the filesystem. A URL without a bucket or a scheme raises ValueError."""
    resolver = FilesystemResolver("memory://bucket/key", storage_options={"skip_instance_cache": True})

    assert resolver.filesystem().protocol == "memory"
    with pytest.raises(ValueError, match="URLs must be of the form memory://bucket/path"):
        FilesystemResolver("memory:///key")
    with pytest.raises(ValueError, match="A scheme-less dataset url"):
        FilesystemResolver("/a/b")


def test_several_urls_have_one_filesystem(tmp_path: Path) -> None:
    """Several URLs share one filesystem, which may be an argument. URLs of different schemes or hosts raise ValueError."""
    given = object()
    urls = [f"{tmp_path.as_uri()}/a", f"{tmp_path.as_uri()}/b"]

    filesystem, paths = get_filesystem_and_path_or_paths(urls)

    assert filesystem.protocol[0] == "file"
    assert paths == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert get_filesystem_and_path_or_paths(urls[0], filesystem=given) == (given, f"{tmp_path}/a")
    with pytest.raises(ValueError, match="the same scheme and netloc"):
        get_filesystem_and_path_or_paths(["file:///a", "memory://b/c"])


@pytest.mark.parametrize(
    ("url", "driver", "node"),
    [
        ("hdfs:///a", "libhdfs3", "libhdfs3-me@first"),
        ("hdfs://cluster/a", "libhdfs3", "libhdfs3-me@first"),
        ("hdfs://other:9/a", "libhdfs3", "libhdfs3-me@other"),
        ("hdfs://cluster/a", "libhdfs", "libhdfs-me@cluster"),
    ],
)
def test_name_nodes_are_found_in_the_settings(url: str, driver: str, node: str) -> None:
    """libhdfs3 looks up the default or the named service in the settings. libhdfs connects to the host of the URL."""
    resolver = FilesystemResolver(url, SETTINGS, connector(), hdfs_driver=driver, user="me")

    assert resolver.filesystem().ls("/a") == f"{node}/a"
    assert resolver.get_dataset_path() == "/a"


def test_settings_are_read_from_the_hadoop_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings come from the XML files of the Hadoop installation. A missing file raises, and an empty file is ignored."""
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    monkeypatch.setenv("HADOOP_PREFIX", str(tmp_path))
    place = tmp_path / "etc" / "hadoop"
    place.mkdir(parents=True)
    rows = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in SETTINGS.items())
    (place / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")
    with pytest.raises(FileNotFoundError, match="hdfs-site"):
        HdfsNamenodeResolver()
    (place / "hdfs-site.xml").write_text("")

    resolver = HdfsNamenodeResolver()

    assert resolver.resolve_default_hdfs_service() == ["cluster", ["first:8020", "second:8020"]]
    assert resolver.resolve_hdfs_name_service("nope") is None


def test_settings_with_xml_entities_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A settings file that declares XML entities is skipped, since a few of them can expand to fill all memory."""
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    place = tmp_path / "etc" / "hadoop"
    place.mkdir(parents=True)
    bomb = '<!DOCTYPE c [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><c><property><name>&b;</name><value>1</value></property></c>'
    (place / "core-site.xml").write_text(bomb)
    (place / "hdfs-site.xml").write_text("<c/>")

    with pytest.raises(RuntimeError, match=r'Failed to get property "fs\.defaultFS" from the settings at'):
        HdfsNamenodeResolver().resolve_default_hdfs_service()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({}, RuntimeError, 'Failed to get property "fs.defaultFS"'),
        ({"fs.defaultFS": "hdfs://x"}, OSError, 'Unable to get namenodes for default service "hdfs://x"'),
        (
            {"fs.defaultFS": "hdfs://x", "dfs.ha.namenodes.x": "one"},
            RuntimeError,
            'Failed to get property "dfs.namenode.rpc-address.x.one"',
        ),
    ],
)
def test_incomplete_settings_raise(settings: dict[str, str], error: type[Exception], text: str) -> None:
    """Incomplete settings raise an error that names what is missing."""
    with pytest.raises(error, match=text):
        HdfsNamenodeResolver(settings).resolve_default_hdfs_service()


def test_a_name_node_that_fails_is_replaced_by_the_next() -> None:
    """The client tries the name nodes in turn, and raises an error after too many failures."""
    nodes = ["first", "second"]
    client = connector(failures=1).connect_to_either_namenode(nodes)

    assert client.ls("/a") == "libhdfs3-None@second/a"
    assert connector(absent=("first",)).connect_to_either_namenode(nodes).ls("/a") == "libhdfs3-None@second/a"
    with pytest.raises(HdfsConnectError, match="Unable to connect to HDFS cluster! Tried: first, second"):
        connector(absent=("first", "second")).connect_to_either_namenode(nodes)
    with pytest.raises(MaxFailoversExceeded, match='maximum \\(3\\) for action "ls"') as raised:
        connector(failures=9).connect_to_either_namenode(nodes).ls("/a")
    assert len(raised.value.failed_exceptions) == namenode_failover.MAX_FAILOVER_ATTEMPTS + 1
    assert (raised.value.max_failover_attempts, raised.value.__name__) == (3, "ls")


def test_a_client_connects_again_after_unpickling() -> None:
    """A pickled client consists of its arguments only, and connects again in another process."""
    client = connector().connect_to_either_namenode(["first"], user="me")

    again = cloudpickle.loads(cloudpickle.dumps(client))

    make: Callable[..., Any] = client.__reduce__()[0]
    assert make is HAHdfsClient
    assert again.ls("/a") == "libhdfs3-me@first/a"
