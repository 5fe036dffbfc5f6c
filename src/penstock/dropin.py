"""`import petastorm` and `import deltatorch` mean Penstock, for scripts that cannot change.

Import this module before theirs, `import penstock.dropin`, or run the script with it: `python -m penstock.dropin train.py`.
It holds for this process and for those that it starts in the same environment of Python. `uninstall()` ends it.

Example:
    >>> from penstock import dropin
    >>> dropin.DOORS["petastorm"]
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
    "DOORS",
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

DOORS = {"petastorm": "penstock.petastorm", "deltatorch": "penstock.deltatorch"}
"""The packages that are stood in for, and what stands in for each."""

ALIASES = str(Path(__file__).parent / "_aliases")
"""A folder of modules with their names. Processes that are started find it on `PYTHONPATH`."""

SCRIPTS = {
    "petastorm-copy-dataset.py": "petastorm.tools.copy_dataset",
    "petastorm-generate-metadata.py": "petastorm.etl.petastorm_generate_metadata",
    "petastorm-throughput.py": "petastorm.benchmark.cli",
}
"""The commands that they install, and the module of each."""

SHIPPED = "penstock_door.py"
"""What stands beside modules with their names, wherever they were shipped to."""

HOME = "PENSTOCK_DROPIN"
"""The variable that tells them for which environment of Python it is meant; in others what is installed there counts."""


class _AliasLoader(Loader):
    """Gives a module of ours under another name: the same object, so that its classes are the same too."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - the name is known
        """Return our own module."""
        found = importlib.import_module(self._name)
        self._spec = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is; it has been run under its own name."""
        module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002 - the name is known
        """Return the code of our own module, for `python -m`."""
        found = importlib.util.find_spec(self._name)
        code: CodeType | None = None if found is None else found.loader.get_code(self._name)  # type: ignore[union-attr] # of a file
        return code


class _AliasFinder(MetaPathFinder):
    """Finds the packages that are stood in for, before those that are installed."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Return what stands in for a module; None for one that has no counterpart, or is another's."""
        root, dot, rest = fullname.partition(".")
        if root not in DOORS:
            return None
        name = f"{DOORS[root]}{dot}{rest}"
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            return None
        if found is None:
            return None
        return ModuleSpec(
            fullname, _AliasLoader(name), origin=found.origin, is_package=found.submodule_search_locations is not None
        )


def compatibility_module(name: str) -> ModuleType:
    """Return the module that stands in for one of another project; where we have none, that one itself.

    Example:
        >>> compatibility_module("petastorm").__name__
        'penstock.petastorm'
    """
    root, dot, rest = name.partition(".")
    if importlib.util.find_spec(DOORS[root]) is not None:
        return importlib.import_module(f"{DOORS[root]}{dot}{rest}")
    spec = _real(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


def install() -> None:
    """Make those imports mean Penstock; it is done when this module is imported.

    Example:
        >>> install()
        >>> import petastorm.codecs
        >>> petastorm.codecs.NdarrayCodec.__module__
        'penstock.petastorm.codecs'
    """
    if any(type(finder).__name__ == _AliasFinder.__name__ for finder in sys.meta_path):
        return
    for name in DOORS:
        _warn_of_the_real_one(name)
    for name in [name for name in sys.modules if name.partition(".")[0] in DOORS]:
        del sys.modules[name]
    sys.meta_path.insert(0, _AliasFinder())
    if ALIASES not in sys.path:
        sys.path.insert(min(1, len(sys.path)), ALIASES)
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if ALIASES not in path:
        os.environ["PYTHONPATH"] = os.pathsep.join([ALIASES, *path])
    os.environ[HOME] = sys.prefix
    _ship_to_running_spark()


def ship(spark: Any) -> None:
    """Make those imports mean Penstock in the executors of a session of Spark too.

    Executors that are started after this module was imported, on the machine of the driver, know it anyhow, and so do those of
    a session that was there when it was. Others are sent a few small modules by this, from the next task on; Penstock itself
    must be installed where they run.

    Args:
        spark: A session of Spark, or its context.

    Example:
        >>> class Context:
        ...     def addPyFile(self, path):
        ...         print(Path(path).name)
        >>> ship(Context())
        deltatorch.py
        penstock_door.py
        petastorm.py
    """
    context = getattr(spark, "sparkContext", spark)
    for module in sorted(Path(ALIASES).glob("*.py")):
        if module.stem != "__init__":
            context.addPyFile(str(module))


def _ship_to_running_spark() -> None:
    """Tell the executors of a session that was there before, as there always is one in a notebook of a cluster."""
    known = sys.modules.get("pyspark")
    running = getattr(getattr(known, "SparkContext", None), "_active_spark_context", None)
    if running is not None:
        ship(running)


def uninstall() -> None:
    """Make those imports mean what they did before; modules that were imported already stay what they are.

    Example:
        >>> uninstall()
        >>> ALIASES in sys.path
        False
    """
    os.environ.pop(HOME, None)
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != _AliasFinder.__name__]
    sys.path[:] = [entry for entry in sys.path if entry != ALIASES]
    for name in [name for name in sys.modules if name.partition(".")[0] in DOORS]:
        del sys.modules[name]
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != ALIASES]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    if not path:
        del os.environ["PYTHONPATH"]


def _warn_of_the_real_one(name: str) -> None:
    """Warn of a package that is installed, or imported already, and is not to be meant."""
    if importlib.util.find_spec(DOORS[name]) is None:
        return
    loaded, found = sys.modules.get(name), _real(name)
    beside = Path(str(getattr(loaded, "__file__", None))).parent / SHIPPED
    ours = beside.exists() or str(getattr(loaded, "__name__", "")) in DOORS.values()
    if loaded is not None and not ours:
        msg = f"{name} was imported before penstock.dropin. From now on `import {name}` means {DOORS[name]}; what was imported "
        warnings.warn(msg + "before stays what it was. Import penstock.dropin first.", UserWarning, stacklevel=4)
    elif found is not None:
        msg = (
            f"{name} is installed as well, at {found.origin}. `import {name}` means {DOORS[name]} now. Uninstall it, or leave "
        )
        warnings.warn(msg + "penstock.dropin out, to be sure of which is meant.", UserWarning, stacklevel=4)


def _real(name: str) -> ModuleSpec | None:
    """Return where a package of another project is installed; None where it is not."""
    found = PathFinder.find_spec(name, [entry for entry in sys.path if not (Path(entry) / SHIPPED).exists()])
    return None if found is None or found.origin is None else found  # a directory that happens to be called so has no origin


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a script, or a module with `-m`, in which those imports mean Penstock; where there is none, end with 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help") or given == ["-m"]:
        print("usage: python -m penstock.dropin [-m module | script.py] [arguments]", file=sys.stderr)  # noqa: T201 - for a user
        raise SystemExit(0 if given and given[0] in ("-h", "--help") else 2)
    install()
    if given[0] == "-m":
        sys.argv[:] = given[1:]
        sys.path.insert(0, str(Path.cwd()))
        if not _is_module(given[1]):
            _refuse(f"module {given[1]!r}")
        runpy.run_module(given[1], run_name="__main__", alter_sys=True)
        return
    if given[0] in SCRIPTS and not Path(given[0]).exists():
        main(["-m", SCRIPTS[given[0]], *given[1:]])
        return
    if not Path(given[0]).exists():
        _refuse(f"file {given[0]!r}")
    sys.argv[:] = given
    sys.path.insert(0, str(Path(given[0]).resolve().parent))
    runpy.run_path(given[0], run_name="__main__")


def copy_dataset() -> None:
    """Run the command `penstock-petastorm-copy-dataset`, in which those imports mean Penstock."""
    main(["petastorm-copy-dataset.py", *sys.argv[1:]])


def generate_metadata() -> None:
    """Run the command `penstock-petastorm-generate-metadata`, likewise; a schema that it is to import may import Petastorm."""
    main(["petastorm-generate-metadata.py", *sys.argv[1:]])


def throughput() -> None:
    """Run the command `penstock-petastorm-throughput`, likewise."""
    main(["petastorm-throughput.py", *sys.argv[1:]])


def _is_module(name: str) -> bool:
    """Return whether there is a module of a name; what goes wrong inside a package that holds it is told as it is."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return False


def _refuse(what: str) -> None:
    """Say that something is not there, in one line, and end as Python does then."""
    print(f"python -m penstock.dropin: there is no {what}. Check its name.", file=sys.stderr)  # noqa: T201 - for a user
    raise SystemExit(2)


if __name__ == "__main__":
    # This copy of the module is called `__main__`; scripts that import it get the other.
    importlib.import_module(__spec__.name).main()
else:
    install()
