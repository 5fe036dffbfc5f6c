"""`import petastorm` and `import deltatorch` mean Penstock, for scripts that cannot change.

Import this module first, `import penstock.dropin`, or run the script with it: `python -m penstock.dropin train.py`.
It applies to this process and to its child processes in the same Python environment, until `uninstall()` is called.

Example:
    >>> from penstock import dropin
    >>> dropin.REPLACED["petastorm"]
    'penstock.petastorm'
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

__all__ = [
    "REPLACED",
    "SCRIPTS",
    "compatibility_module",
    "copy_dataset",
    "generate_metadata",
    "install",
    "main",
    "ship",
    "throughput",
    "uninstall",
]

REPLACED = {"petastorm": "penstock.petastorm", "deltatorch": "penstock.deltatorch"}
"""The packages that are replaced, and the package of Penstock for each."""

ALIASES = str(Path(__file__).parent / "_aliases")
"""A folder of modules with the names of these packages. Child processes find it on `PYTHONPATH`."""

SCRIPTS = {
    "petastorm-copy-dataset.py": "petastorm.tools.copy_dataset",
    "petastorm-generate-metadata.py": "petastorm.etl.petastorm_generate_metadata",
    "petastorm-throughput.py": "petastorm.benchmark.cli",
}
"""The commands of these packages, and the module of each."""

MARKER = "penstock_alias.py"
"""A file in each directory that the modules of `ALIASES` were copied to."""

HOME = "PENSTOCK_DROPIN"
"""The environment variable with the Python environment of this process; in another one, installed packages are imported."""


class _AliasLoader(Loader):
    """Imports a module of Penstock under another name, as the same object."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - the name is known
        """Return the module of Penstock."""
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec of the module, which was executed under its own name."""
        module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002 - the name is known
        """Return the code of the module of Penstock, for `python -m`."""
        spec = importlib.util.find_spec(self._name)
        code: CodeType | None = None if spec is None else spec.loader.get_code(self._name)  # type: ignore[union-attr] # it has a file
        return code


class _AliasFinder(MetaPathFinder):
    """Finds the modules of Penstock before the installed packages."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Return the spec of the module of Penstock; None if there is none."""
        root, dot, rest = fullname.partition(".")
        if root not in REPLACED:
            return None
        name = f"{REPLACED[root]}{dot}{rest}"
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            return None
        if spec is None:
            return None
        is_package = spec.submodule_search_locations is not None
        return ModuleSpec(fullname, _AliasLoader(name), origin=spec.origin, is_package=is_package)


def compatibility_module(name: str) -> ModuleType:
    """Return the module of Penstock for one of these packages; the installed module if Penstock has none.

    Example:
        >>> compatibility_module("petastorm").__name__
        'penstock.petastorm'
    """
    root, dot, rest = name.partition(".")
    if importlib.util.find_spec(REPLACED[root]) is not None:
        return importlib.import_module(f"{REPLACED[root]}{dot}{rest}")
    spec = _find_installed(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def install() -> None:
    """Import Penstock for these packages from now on; importing this module calls it.

    Example:
        >>> install()
        >>> import petastorm.codecs
        >>> petastorm.codecs.NdarrayCodec.__module__
        'penstock.petastorm.codecs'
    """
    if any(type(finder).__name__ == _AliasFinder.__name__ for finder in sys.meta_path):
        return
    for name in REPLACED:
        _warn_of_installed(name)
    for name in [name for name in sys.modules if name.partition(".")[0] in REPLACED]:
        del sys.modules[name]
    sys.meta_path.insert(0, _AliasFinder())
    if ALIASES not in sys.path:
        sys.path.insert(min(1, len(sys.path)), ALIASES)
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if ALIASES not in path:
        os.environ["PYTHONPATH"] = os.pathsep.join([ALIASES, *path])
    os.environ[HOME] = sys.prefix
    _ship_to_active_spark()


def ship(spark: Any) -> None:
    """Import Penstock for these packages in the executors of a Spark session too, from the next task on.

    It sends a few small modules to the executors. It is not needed for executors on the machine of the driver that start after
    this module was imported, nor for the session that was active then. Penstock must be installed on the executors.

    Args:
        spark: A Spark session or context.

    Example:
        >>> class Context:
        ...     def addPyFile(self, path):
        ...         print(Path(path).name)
        >>> ship(Context())
        deltatorch.py
        penstock_alias.py
        petastorm.py
    """
    context = getattr(spark, "sparkContext", spark)
    for module in sorted(Path(ALIASES).glob("*.py")):
        if module.stem != "__init__":
            context.addPyFile(str(module))


def _ship_to_active_spark() -> None:
    """Ship to the active Spark session, which notebooks of a cluster always have."""
    pyspark = sys.modules.get("pyspark")
    context = getattr(getattr(pyspark, "SparkContext", None), "_active_spark_context", None)
    if context is not None:
        ship(context)


def uninstall() -> None:
    """Import the installed packages again; modules that were imported before do not change.

    Example:
        >>> uninstall()
        >>> ALIASES in sys.path
        False
    """
    os.environ.pop(HOME, None)
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != _AliasFinder.__name__]
    sys.path[:] = [entry for entry in sys.path if entry != ALIASES]
    for name in [name for name in sys.modules if name.partition(".")[0] in REPLACED]:
        del sys.modules[name]
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != ALIASES]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    if not path:
        del os.environ["PYTHONPATH"]


def _warn_of_installed(name: str) -> None:
    """Warn of a package that is installed, or was imported before."""
    if importlib.util.find_spec(REPLACED[name]) is None:
        return
    loaded, installed = sys.modules.get(name), _find_installed(name)
    marker = Path(str(getattr(loaded, "__file__", None))).parent / MARKER
    is_ours = marker.exists() or str(getattr(loaded, "__name__", "")) in REPLACED.values()
    if loaded is not None and not is_ours:
        msg = f"{name} was imported before penstock.dropin. From now on `import {name}` means {REPLACED[name]}; what was "
        warnings.warn(msg + "imported before stays what it was. Import penstock.dropin first.", UserWarning, stacklevel=4)
    elif installed is not None:
        msg = (
            f"{name} is installed as well, at {installed.origin}. `import {name}` means {REPLACED[name]} now. Uninstall it, or "
        )
        warnings.warn(msg + "leave penstock.dropin out, to be sure of which is meant.", UserWarning, stacklevel=4)


def _find_installed(name: str) -> ModuleSpec | None:
    """Return the spec of an installed package; None if it is not installed."""
    spec = PathFinder.find_spec(name, [entry for entry in sys.path if not (Path(entry) / MARKER).exists()])
    # A directory that is no package has no origin.
    return None if spec is None or spec.origin is None else spec


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a script, or a module with `-m`, with Penstock for these packages; exit with 2 if it does not exist."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help") or given == ["-m"]:
        print("usage: python -m penstock.dropin [-m module | script.py] [arguments]", file=sys.stderr)  # noqa: T201 - for a user
        raise SystemExit(0 if given and given[0] in ("-h", "--help") else 2)
    install()
    if given[0] == "-m":
        sys.argv[:] = given[1:]
        sys.path.insert(0, str(Path.cwd()))
        if not _is_module(given[1]):
            _exit_not_found(f"module {given[1]!r}")
        runpy.run_module(given[1], run_name="__main__", alter_sys=True)
        return
    if given[0] in SCRIPTS and not Path(given[0]).exists():
        main(["-m", SCRIPTS[given[0]], *given[1:]])
        return
    if not Path(given[0]).exists():
        _exit_not_found(f"file {given[0]!r}")
    sys.argv[:] = given
    sys.path.insert(0, str(Path(given[0]).resolve().parent))
    runpy.run_path(given[0], run_name="__main__")


def copy_dataset() -> None:
    """Run the command `penstock-petastorm-copy-dataset`."""
    main(["petastorm-copy-dataset.py", *sys.argv[1:]])


def generate_metadata() -> None:
    """Run the command `penstock-petastorm-generate-metadata`; the module of the schema may import Petastorm."""
    main(["petastorm-generate-metadata.py", *sys.argv[1:]])


def throughput() -> None:
    """Run the command `penstock-petastorm-throughput`."""
    main(["petastorm-throughput.py", *sys.argv[1:]])


def _is_module(name: str) -> bool:
    """Return whether a module exists; an import error inside of its package is raised."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return False


def _exit_not_found(what: str) -> None:
    """Print one line, and exit as Python does for a missing script."""
    print(f"python -m penstock.dropin: there is no {what}. Check its name.", file=sys.stderr)  # noqa: T201 - for a user
    raise SystemExit(2)


if __name__ == "__main__":
    # Scripts that import this module get another copy of it than `__main__`.
    importlib.import_module(__spec__.name).main()
else:
    install()
