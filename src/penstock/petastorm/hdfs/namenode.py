"""`petastorm.hdfs.namenode`: clusters of Hadoop with several name nodes.

`make_reader` does not use this module: libhdfs, which pyarrow uses, reads the settings and finds the active name node.
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

INSTALL_VARIABLES = ("HADOOP_HOME", "HADOOP_PREFIX", "HADOOP_INSTALL")
"""Environment variables with the directory of Hadoop; the first that is set is used."""

PORT = 8020


class HdfsConnectError(IOError):
    """No name node can be reached."""


class MaxFailoversExceeded(RuntimeError):  # noqa: N818 - Petastorm's name
    """A call failed with each name node.

    Attributes:
        failed_exceptions: The errors.
        max_failover_attempts: The maximum number of failovers.
    """

    def __init__(self, failed_exceptions: Sequence[BaseException], max_failover_attempts: int, func_name: str) -> None:
        """Store the errors."""
        self.failed_exceptions, self.max_failover_attempts = failed_exceptions, max_failover_attempts
        self.__name__ = func_name
        super().__init__(
            f'Failover attempts exceeded maximum ({max_failover_attempts}) for action "{func_name}". Exceptions:\n'
            f"{failed_exceptions}"
        )


class HdfsNamenodeResolver:
    """Finds the name nodes of a service in the settings of Hadoop.

    Args:
        hadoop_configuration: The settings, any object with `get`; by default those of the installed Hadoop.

    Raises:
        OSError: If a file of settings is missing.
    """

    def __init__(self, hadoop_configuration: Any = None) -> None:
        """Read the settings."""
        self._hadoop_env = self._hadoop_path = None
        if hadoop_configuration is None:
            self._hadoop_env = next((name for name in INSTALL_VARIABLES if name in os.environ), None)
            self._hadoop_path = None if self._hadoop_env is None else os.environ[self._hadoop_env]
            hadoop_configuration = {} if self._hadoop_path is None else _settings(Path(self._hadoop_path))
            if self._hadoop_path is None:
                logger.warning(
                    "No settings of Hadoop were found: none of %s is set. Set HADOOP_HOME.", ", ".join(INSTALL_VARIABLES)
                )
        self._settings: Any = hadoop_configuration

    def _with_source(self, message: str) -> str:
        if self._hadoop_path is None:
            return f"{message} the settings that were given"
        return f"{message} the settings at {self._hadoop_path}, which {self._hadoop_env} names. Check them."

    def resolve_hdfs_name_service(self, namespace: str) -> list[str] | None:
        """Return the addresses of the name nodes of a service; None for an unknown service.

        Raises:
            RuntimeError: If a name node has no address.
        """
        nodes = self._settings.get(f"dfs.ha.namenodes.{namespace}")
        if not nodes:
            return None
        addresses = []
        for node in nodes.split(","):
            key = f"dfs.namenode.rpc-address.{namespace}.{node.strip()}"
            address = self._settings.get(key)
            if not address:
                raise RuntimeError(self._with_source(f'Failed to get property "{key}" from'))
            addresses.append(str(address))
        return addresses

    def resolve_default_hdfs_service(self) -> list[Any]:
        """Return the default service and the addresses of its name nodes.

        Raises:
            RuntimeError: If there is no default.
            OSError: If the default service is unknown.
        """
        default = self._settings.get("fs.defaultFS")
        if not default:
            raise RuntimeError(self._with_source('Failed to get property "fs.defaultFS" from'))
        service = urlparse(default).netloc
        nodes = self.resolve_hdfs_name_service(service)
        if nodes is None:
            raise OSError(self._with_source(f'Unable to get namenodes for default service "{default}" from'))
        return [service, nodes]


def _settings(place: Path) -> dict[str, str]:
    """Return the settings of an installed Hadoop."""
    settings: dict[str, str] = {}
    for name in ("hdfs-site.xml", "core-site.xml"):
        path = place / "etc" / "hadoop" / name
        data = path.read_bytes()
        try:
            settings.update(_properties(data))
        except expat.ExpatError as error:
            logger.error("The settings of Hadoop in %s are not read: %s", path, error)  # noqa: TRY400 - as Petastorm does
    return settings


def _properties(data: bytes) -> dict[str, str]:
    """Return the names and values of a file of settings. Entities are not expanded."""
    properties: dict[str, str] = {}
    texts: dict[str, str] = {}
    inside: list[str] = []

    def end(tag: str) -> None:
        inside.pop()
        if tag == "property":
            if "name" in texts:
                properties[texts["name"].strip()] = texts.get("value", "").strip()
            texts.clear()

    def letters(text: str) -> None:
        if len(inside) > 1 and inside[-2] == "property" and inside[-1] in ("name", "value"):
            texts[inside[-1]] = texts.get(inside[-1], "") + text

    def entity(*_: Any) -> None:
        raise expat.ExpatError("it declares entities, which settings do not need")

    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda tag, _: inside.append(tag)
    parser.EndElementHandler, parser.CharacterDataHandler, parser.EntityDeclHandler = end, letters, entity
    parser.Parse(data, True)  # noqa: FBT003 - the end of the data
    return properties


class namenode_failover:  # noqa: N801 - Petastorm's name
    """A method that is called again with the next name node when it fails."""

    MAX_FAILOVER_ATTEMPTS = 3

    def __init__(self, func: Callable[..., Any]) -> None:
        """Store the name of the method."""
        self._func_name = func.__name__

    def __get__(self, obj: Any, obj_type: Any = None) -> Callable[..., Any]:
        """Return the method of a client."""
        return functools.partial(self.__call__, obj)

    def __call__(self, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the method.

        Raises:
            MaxFailoversExceeded: If it fails with each name node.
        """
        failures: list[BaseException] = []
        while len(failures) <= self.MAX_FAILOVER_ATTEMPTS:
            try:
                return getattr(obj._hdfs, self._func_name)(*args, **kwargs)  # noqa: SLF001 - of the client
            except OSError as error:
                failures.append(error)
                obj._do_connect()  # noqa: SLF001 - the same
        raise MaxFailoversExceeded(failures, self.MAX_FAILOVER_ATTEMPTS, self._func_name)


def failover_all_class_methods(decorator: Callable[..., Any]) -> Callable[[type], type]:
    """Return a class decorator that decorates all public methods, inherited ones included."""

    @functools.wraps(decorator)
    def decorate(cls: type) -> type:
        for name in [name for name in dir(cls) if not name.startswith("_") and inspect.isroutine(getattr(cls, name))]:
            setattr(cls, name, decorator(getattr(cls, name)))
        return cls

    return decorate


class HAHdfsClient:
    """A filesystem of a cluster whose methods are called again with the next name node when they fail.

    Args:
        connector_cls: Connects to a name node.
        list_of_namenodes: The addresses of the name nodes.
        user: The user.

    Raises:
        HdfsConnectError: If no name node can be reached.
    """

    def __init__(self, connector_cls: Any, list_of_namenodes: Sequence[str], user: str | None = None) -> None:
        """Connect."""
        self._connector_cls, self._list_of_namenodes, self._user = connector_cls, list_of_namenodes, user
        self._index_of_nn = -1
        self._do_connect()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments."""
        return type(self), (self._connector_cls, self._list_of_namenodes, self._user)

    def __getattr__(self, name: str) -> Any:
        """Return a method of the filesystem."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        attribute = getattr(self._hdfs, name)
        if not callable(attribute):
            return attribute

        def method() -> None: ...

        method.__name__ = name
        return namenode_failover(method).__get__(self)

    def _do_connect(self) -> None:
        """Connect to the next name node."""
        connect = self._connector_cls._try_next_namenode  # noqa: SLF001 - of this module
        self._index_of_nn, self._hdfs = connect(self._index_of_nn, self._list_of_namenodes, user=self._user)


class HdfsConnector:
    """Connects to name nodes."""

    @classmethod
    def hdfs_connect_namenode(cls, url: Any, driver: str = "libhdfs3", user: str | None = None) -> Any:  # noqa: ARG003 - pyarrow finds it
        """Return the filesystem of a name node with a parsed URL."""
        return pafs.HadoopFileSystem(str(url.hostname or "default"), url.port or PORT, user=user)

    @classmethod
    def connect_to_either_namenode(cls, list_of_namenodes: Sequence[str], user: str | None = None) -> HAHdfsClient:
        """Return the filesystem of the first name node that can be reached.

        Raises:
            HdfsConnectError: If none can be reached.
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
