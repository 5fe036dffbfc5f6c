"""Clusters of Hadoop with several name nodes: `petastorm.hdfs.namenode`.

`make_reader` does not come here: libhdfs, which pyarrow uses, reads Hadoop's settings itself, and finds the active name node.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from xml.parsers import expat

from pyarrow import fs as pafs

__all__ = [
    "HAHdfsClient",
    "HdfsConnectError",
    "HdfsConnector",
    "HdfsNamenodeResolver",
    "MaxFailoversExceeded",
    "failover_all_class_methods",
    "namenode_failover",
]

logger = logging.getLogger(__name__)

PLACES = ("HADOOP_HOME", "HADOOP_PREFIX", "HADOOP_INSTALL")
"""Variables that say where Hadoop is installed; the first that is there counts."""

PORT = 8020


class HdfsConnectError(IOError):
    """No name node can be reached."""


class MaxFailoversExceeded(RuntimeError):  # noqa: N818 - Petastorm's name
    """Something failed with every name node that was tried.

    Attributes:
        failed_exceptions: What went wrong each time.
        max_failover_attempts: How often another one was tried.
    """

    def __init__(self, failed_exceptions: Sequence[BaseException], max_failover_attempts: int, func_name: str) -> None:
        """Store what went wrong."""
        self.failed_exceptions, self.max_failover_attempts = failed_exceptions, max_failover_attempts
        self.__name__ = func_name
        super().__init__(
            f'Failover attempts exceeded maximum ({max_failover_attempts}) for action "{func_name}". Exceptions:\n'
            f"{failed_exceptions}"
        )


class HdfsNamenodeResolver:
    """Finds the name nodes of a service in the settings of Hadoop.

    Args:
        hadoop_configuration: The settings, anything with `get`; by default those of the Hadoop that is installed.

    Raises:
        OSError: If a file of settings is not there.
    """

    def __init__(self, hadoop_configuration: Any = None) -> None:
        """Read the settings."""
        self._hadoop_env = self._hadoop_path = None
        if hadoop_configuration is None:
            self._hadoop_env = next((name for name in PLACES if name in os.environ), None)
            self._hadoop_path = None if self._hadoop_env is None else os.environ[self._hadoop_env]
            hadoop_configuration = {} if self._hadoop_path is None else _settings(Path(self._hadoop_path))
            if self._hadoop_path is None:
                logger.warning("No settings of Hadoop were found: none of %s is set. Set HADOOP_HOME.", ", ".join(PLACES))
        self._settings: Any = hadoop_configuration

    def _told(self, message: str) -> str:
        if self._hadoop_path is None:
            return f"{message} the settings that were given"
        return f"{message} the settings at {self._hadoop_path}, which {self._hadoop_env} names. Check them."

    def resolve_hdfs_name_service(self, namespace: str) -> list[str] | None:
        """Return the addresses of the name nodes of a service; None where it is no service.

        Raises:
            RuntimeError: If one has no address.
        """
        nodes = self._settings.get(f"dfs.ha.namenodes.{namespace}")
        if not nodes:
            return None
        found = []
        for node in nodes.split(","):
            key = f"dfs.namenode.rpc-address.{namespace}.{node.strip()}"
            address = self._settings.get(key)
            if not address:
                raise RuntimeError(self._told(f'Failed to get property "{key}" from'))
            found.append(str(address))
        return found

    def resolve_default_hdfs_service(self) -> list[Any]:
        """Return the default service and the addresses of its name nodes.

        Raises:
            RuntimeError: If there is no default.
            OSError: If it is no service.
        """
        default = self._settings.get("fs.defaultFS")
        if not default:
            raise RuntimeError(self._told('Failed to get property "fs.defaultFS" from'))
        service = urlparse(default).netloc
        nodes = self.resolve_hdfs_name_service(service)
        if nodes is None:
            raise OSError(self._told(f'Unable to get namenodes for default service "{default}" from'))
        return [service, nodes]


def _settings(place: Path) -> dict[str, str]:
    """Return what the files of an installation of Hadoop set."""
    found: dict[str, str] = {}
    for name in ("hdfs-site.xml", "core-site.xml"):
        path = place / "etc" / "hadoop" / name
        data = path.read_bytes()
        try:
            found.update(_properties(data))
        except expat.ExpatError as error:
            logger.error("The settings of Hadoop in %s are not read: %s", path, error)  # noqa: TRY400 - as Petastorm does
    return found


def _properties(data: bytes) -> dict[str, str]:
    """Return names and values of a file of settings; nothing that it declares is expanded."""
    found: dict[str, str] = {}
    texts: dict[str, str] = {}
    inside: list[str] = []

    def end(tag: str) -> None:
        inside.pop()
        if tag == "property":
            if "name" in texts:
                found[texts["name"].strip()] = texts.get("value", "").strip()
            texts.clear()

    def letters(text: str) -> None:
        if len(inside) > 1 and inside[-2] == "property" and inside[-1] in ("name", "value"):
            texts[inside[-1]] = texts.get(inside[-1], "") + text

    def entity(*_: Any) -> None:
        raise expat.ExpatError("it declares entities, which settings do not need")

    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda tag, _: inside.append(tag)
    parser.EndElementHandler, parser.CharacterDataHandler, parser.EntityDeclHandler = end, letters, entity
    parser.Parse(data, True)  # noqa: FBT003 - there is no more
    return found


class namenode_failover:  # noqa: N801 - Petastorm's name
    """A method that is tried again with the next name node when it fails."""

    MAX_FAILOVER_ATTEMPTS = 3

    def __init__(self, func: Callable[..., Any]) -> None:
        """Store which method it is."""
        self._func_name = func.__name__

    def __get__(self, obj: Any, obj_type: Any = None) -> Callable[..., Any]:
        """Return it for one client."""
        return functools.partial(self.__call__, obj)

    def __call__(self, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what the method returns.

        Raises:
            MaxFailoversExceeded: If it fails with each of them.
        """
        failures: list[BaseException] = []
        while len(failures) <= self.MAX_FAILOVER_ATTEMPTS:
            try:
                return getattr(obj._hdfs, self._func_name)(*args, **kwargs)  # noqa: SLF001 - what it stands before
            except OSError as error:
                failures.append(error)
                obj._do_connect()  # noqa: SLF001 - the same
        raise MaxFailoversExceeded(failures, self.MAX_FAILOVER_ATTEMPTS, self._func_name)


def failover_all_class_methods(decorator: Callable[..., Any]) -> Callable[[type], type]:
    """Return what decorates every public method of a class, those that it inherits too."""

    @functools.wraps(decorator)
    def decorate(cls: type) -> type:
        for name in [name for name in dir(cls) if not name.startswith("_") and inspect.isroutine(getattr(cls, name))]:
            setattr(cls, name, decorator(getattr(cls, name)))
        return cls

    return decorate


class HAHdfsClient:
    """A filesystem of a cluster: each method of it is tried again with the next name node when it fails.

    Args:
        connector_cls: What connects.
        list_of_namenodes: The addresses of the name nodes.
        user: Who connects.

    Raises:
        HdfsConnectError: If none of them can be reached.
    """

    def __init__(self, connector_cls: Any, list_of_namenodes: Sequence[str], user: str | None = None) -> None:
        """Connect."""
        self._connector_cls, self._list_of_namenodes, self._user = connector_cls, list_of_namenodes, user
        self._index_of_nn = -1
        self._do_connect()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what it was made with."""
        return type(self), (self._connector_cls, self._list_of_namenodes, self._user)

    def __getattr__(self, name: str) -> Any:
        """Return a method of the filesystem."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self._hdfs, name)
        if not callable(found):
            return found

        def method() -> None: ...

        method.__name__ = name
        return namenode_failover(method).__get__(self)

    def _do_connect(self) -> None:
        """Connect to the next name node."""
        connect = self._connector_cls._try_next_namenode  # noqa: SLF001 - its other half
        self._index_of_nn, self._hdfs = connect(self._index_of_nn, self._list_of_namenodes, user=self._user)


class HdfsConnector:
    """Connects to name nodes."""

    @classmethod
    def hdfs_connect_namenode(cls, url: Any, driver: str = "libhdfs3", user: str | None = None) -> Any:  # noqa: ARG003 - one is left
        """Return the filesystem of one name node, whose URL is parsed already."""
        return pafs.HadoopFileSystem(str(url.hostname or "default"), url.port or PORT, user=user)

    @classmethod
    def connect_to_either_namenode(cls, list_of_namenodes: Sequence[str], user: str | None = None) -> HAHdfsClient:
        """Return the filesystem of whichever of several name nodes can be reached.

        Raises:
            HdfsConnectError: If none can.
        """
        assert list_of_namenodes is not None, "Must supply a list of namenodes"  # noqa: S101 - Petastorm's
        return HAHdfsClient(cls, list_of_namenodes, user=user)

    @classmethod
    def _try_next_namenode(cls, index_of_nn: int, list_of_namenodes: Sequence[str], user: str | None = None) -> tuple[int, Any]:
        """Return the number of the next name node that can be reached, and its filesystem."""
        count = len(list_of_namenodes)
        for step in range(1, count + 1):
            number = (index_of_nn + step) % count
            address = str(list_of_namenodes[number] or "default")
            try:
                return number, cls.hdfs_connect_namenode(urlparse(f"hdfs://{address}"), user=user)
            except OSError as error:
                logger.debug("The name node %s cannot be reached: %s", address, error)
        raise HdfsConnectError(f"Unable to connect to HDFS cluster! Tried: {', '.join(map(str, list_of_namenodes)) or 'none'}.")
