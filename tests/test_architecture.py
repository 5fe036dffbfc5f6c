"""The architecture: which package may import which, and what no module may do.

The tables at the top are the rules. Add a new package to `LAYERS`, and a new library to `LIBRARIES`.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "penstock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Where a third-party library may be imported.

    Attributes:
        modules: The modules that may import it at all.
        top: Those of them that may do so at module level, where it is loaded with the module.
    """

    modules: tuple[str, ...]
    top: tuple[str, ...] = ()


# From the bottom up: a package may import the earlier entries of this list. Packages in one tuple may not import each other.
# Within a package, all imports without a cycle are allowed.
LAYERS: tuple[str | tuple[str, ...], ...] = (
    "errors",
    ("dtypes", "randomness", "stable_hash", "stats", "_arrow_types", "_loader_options"),
    ("_blobs", "policies"),
    "schema",
    ("model", "sequences"),
    "protocols",
    ("filters", "codecs", "shuffles"),
    ("schema.compat", "schema.json"),
    "_engine",
    ("_engine.query", "_engine.storage", "_engine.runtime"),
    ("_engine.parquet", "_engine.commit"),
    "formats",
    "_engine.decode",
    "_engine.read",
    "_engine.plan",
    "_engine.order",
    "_engine.window",
    "_engine.batch",
    "_engine.processes",
    ("_engine.lookup", "_engine.row_groups"),
    "_engine.deliver",
    "_engine.write",
    "_dataset",
    "dataset",
    "_mix_clauses",
    "mix",
    "loading",
    "_open",
    ("_changes", "_write"),
    "write",
    "adopt",
    ("torch", "tensorflow", "jax", "spark", "prometheus"),
    ("petastorm", "deltatorch"),
    ("dropin", "cli", "testing"),
    "_aliases",
    "__main__",
    "",  # penstock/__init__.py
)

ANYWHERE = ("*",)
ADAPTERS_AND_UP = ("torch.*", "tensorflow", "jax", "spark", "petastorm.*", "deltatorch.*", "dropin", "cli.*", "testing.*")
PICKLING = (
    "_engine.processes.channel",
    "_engine.processes.pickling",
    "_engine.processes.worker",
    "dataset",
    "torch.*",
    "petastorm._impl.pickling",
)
LIBRARIES = {
    "numpy": Library(modules=ANYWHERE, top=ANYWHERE),
    "pyarrow": Library(modules=ANYWHERE, top=ANYWHERE),
    "fsspec": Library(
        modules=("_engine.storage.filesystem", "formats.delta.commit", "petastorm.fs_utils", "testing"),
        top=("_engine.storage.filesystem", "testing"),
    ),
    "cloudpickle": Library(modules=PICKLING, top=PICKLING),
    "deltalake": Library(modules=("formats.delta",)),
    "cv2": Library(modules=("codecs.*", *ADAPTERS_AND_UP)),
    "imagecodecs": Library(modules=("codecs.*", *ADAPTERS_AND_UP)),
    "simplejpeg": Library(modules=("codecs.*", *ADAPTERS_AND_UP)),
    "PIL": Library(modules=("codecs.*", *ADAPTERS_AND_UP)),
    "pandas": Library(modules=("_dataset.data_frames", "dataset", "write", *ADAPTERS_AND_UP)),
    "torch": Library(modules=ADAPTERS_AND_UP, top=("torch.*", "deltatorch.*")),
    "tensorflow": Library(modules=ADAPTERS_AND_UP, top=("tensorflow",)),
    "jax": Library(modules=ADAPTERS_AND_UP, top=("jax",)),
    "pyspark": Library(modules=ADAPTERS_AND_UP, top=("spark",)),
    # In the same folder as the aliases, which is on the path of child processes.
    "penstock_alias": Library(modules=("_aliases.*",), top=("_aliases.*",)),
    "prometheus_client": Library(modules=("prometheus",)),
    "rich": Library(modules=("cli.*", "_write.progress"), top=("cli.*",)),
}

# Libraries that can run code from the data.
UNSAFE_LIBRARIES = {"pickle", "_pickle", "marshal", "shelve", "dill", "joblib"}
# Processes of Penstock send each other pickled batches. No other module may unpickle: files and caches may be untrusted.
BETWEEN_OWN_PROCESSES = ("_engine.processes.serialize",)
UNSAFE_CALLS = {"eval", "exec", "builtins.eval", "builtins.exec"}

GENERIC_NAMES = {"util", "utils", "helper", "helpers", "common", "misc"}
MAX_PARAMETERS = 7
MANY_OPTIONS = {
    "torch._loader.loader",
    "write.write",
}  # users pass these options by name, so an object of options would be inconvenient

# Other projects define the file names and signatures of these modules.
COMPATIBILITY = ("petastorm.*", "deltatorch.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import of a module: a dotted name, its line, and whether it runs when the module is loaded."""

    name: str
    line: int
    top: bool


parsed = cache(ast.parse)


def source_files() -> dict[str, Path]:
    """Return the file of each module, by its name without `penstock.`; the package itself is ""."""
    names = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(part for part in parts if part != "__init__"): path for path, parts in names.items()}


FILES = source_files()
LAYER_NUMBERS = {
    name: level for level, layer in enumerate(LAYERS) for name in ((layer,) if isinstance(layer, str) else layer)
}  # the number of the layer of each package


def matches(module: str, patterns: tuple[str, ...]) -> bool:
    """Return whether one of the patterns names a module; `name.*` names `name` too."""
    return any(fnmatchcase(module, pattern) or module == pattern.removesuffix(".*") for pattern in patterns)


def package_of(module: str) -> str | None:
    """Return the longest entry of `LAYERS` that contains a module; None if there is none."""
    parts = module.split(".") if module else []
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        if name == "_engine" and len(parts) > 1:
            return None  # each package of the engine has a layer of its own
        if name in LAYER_NUMBERS:
            return name
    return None if parts else ""


@cache
def imports(module: str, source: str) -> tuple[Import, ...]:
    """Return every import of a source text, including imports in functions and by a literal name."""
    tree = parsed(source)
    package = ["penstock", *module.split(".")] if module else ["penstock"]
    if module and FILES.get(module, Path()).name != "__init__.py":
        package.pop()
    later = {id(inner) for node in ast.walk(tree) for part in run_later(node) for inner in ast.walk(part)}
    return tuple(
        Import(name=name, line=getattr(node, "lineno", 0), top=id(node) not in later)
        for node in ast.walk(tree)
        for name in imported_names(node, package)
    )


def run_later(node: ast.AST) -> Sequence[ast.AST]:
    """Return the statements of a node that do not run when its module is loaded."""
    match node:
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            return body
        case ast.If(test=test, body=body) if ast.unparse(test).endswith("TYPE_CHECKING"):
            return body
    return ()


def imported_names(node: ast.AST, package: list[str]) -> list[str]:
    """Return the dotted names that one node imports."""
    match node:
        case ast.Import(names=aliases):
            return [alias.name for alias in aliases]
        case ast.ImportFrom(module=module, names=aliases, level=level):
            above = package[: len(package) - level + 1] if level else []
            start = ".".join([*above, *([module] if module else [])])
            return [f"{start}.{alias.name}" for alias in aliases]
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
            if ast.unparse(function) in {"__import__", "import_module", "importlib.import_module"}:
                return [name]
    return []


def imported_module(name: str) -> str | None:
    """Return the module that contains a dotted name; None if the name is outside Penstock."""
    first, *rest = name.split(".")
    if first != "penstock":
        return None
    while ".".join(rest) not in FILES.keys() | LAYER_NUMBERS.keys():
        rest.pop()
    return ".".join(rest)


def may_import(module: str, other: str) -> bool:
    """Return whether a module may import another."""
    mine, theirs = package_of(module), package_of(other)
    if mine is None or theirs is None:
        return mine is None  # a module without a layer is reported on its own
    return mine == theirs or LAYER_NUMBERS[theirs] < LAYER_NUMBERS[mine]


def import_faults(module: str, source: str) -> list[str]:
    """Return one sentence for each forbidden import of a source text."""
    faults = []
    for found in imports(module, source):
        other, library = imported_module(found.name), found.name.split(".")[0]
        at = f"{module or '__init__'}:{found.line} imports {found.name}"
        if other is not None:
            if not may_import(module, other):
                faults.append(f"{at}, which is not below it. See LAYERS in tests/test_architecture.py.")
        elif library in UNSAFE_LIBRARIES:
            if library == "pickle" and module in BETWEEN_OWN_PROCESSES:
                continue
            faults.append(f"{at}, which can run code that came with the data. Nothing may.")
        elif library in LIBRARIES:
            allowed = LIBRARIES[library]
            if not matches(module, allowed.modules):
                faults.append(f"{at}, which belongs to {', '.join(allowed.modules)}.")
            elif found.top and not matches(module, allowed.top):
                faults.append(f"{at} at its top. Import it in the function that needs it.")
        elif library not in sys.stdlib_module_names:
            faults.append(f"{at}, a library that no module may import. Add it to LIBRARIES, or do without.")
    return faults


def unsafe_calls(module: str, source: str) -> list[str]:
    """Return one sentence for each call of a source text that can run code from the data."""
    faults = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call):
            if ast.unparse(node.func) in UNSAFE_CALLS:
                faults.append(f"{module}:{node.lineno} runs text as code.")
            arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if arguments.get("allow_pickle", "False") != "False":
                faults.append(f"{module}:{node.lineno} may unpickle. Pass allow_pickle=False.")
    return faults


def signature_faults(module: str, source: str) -> list[str]:
    """Return one sentence for each function of a source text that has too many parameters."""
    faults = []
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        count = len(parameters(node))
        if count > MAX_PARAMETERS and f"{module}.{node.name}" not in MANY_OPTIONS and not matches(module, COMPATIBILITY):
            faults.append(f"{module}.{node.name} has {count} parameters, more than {MAX_PARAMETERS}. Make an object of them.")
    return faults


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the names of a function's parameters, except `self` and `cls`."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return [arg.arg for arg in named if arg is not None and arg.arg not in {"self", "cls"}]


def test_every_module_belongs_to_a_layer() -> None:
    """Every module belongs to an entry of `LAYERS`."""
    assert [module for module in FILES if package_of(module) is None] == []


def test_imports_go_down_only() -> None:
    """A module imports only its own package, lower layers and its allowed libraries, also inside functions."""
    assert [fault for module, path in FILES.items() for fault in import_faults(module, path.read_text())] == []


@pytest.mark.parametrize("package", [name for name in LAYER_NUMBERS if name.startswith("_engine.")])
def test_an_engine_package_documents_its_imports(package: str) -> None:
    """The last line of the docstring of an engine package lists the engine packages that its modules import."""
    last_line = (ast.get_docstring(ast.parse(FILES[package].read_text())) or "").splitlines()[-1]
    modules = [module for module in FILES if package_of(module) == package]
    others = {imported_module(found.name) for module in modules for found in imports(module, FILES[module].read_text())}
    used = {package_of(other) for other in others if other is not None} - {package}
    names = [name.removeprefix("_engine.") for name in LAYER_NUMBERS if name in used and name.startswith("_engine.")]

    assert last_line == f"Imports of the engine: {', '.join(f'`{name}`' for name in names) or 'none'}."


def test_imports_make_no_cycle() -> None:
    """No module imports itself through other modules, not even within one package."""
    graph = {
        module: {other for found in imports(module, path.read_text()) if (other := imported_module(found.name)) is not None}
        - {module}
        for module, path in FILES.items()
    }

    try:
        cycle = []
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = error.args[1]

    assert cycle == []


def test_no_module_runs_code_from_the_data() -> None:
    """No module evaluates text or lets NumPy unpickle."""
    assert [fault for module, path in FILES.items() for fault in unsafe_calls(module, path.read_text())] == []


def test_modules_are_named_for_what_they_do() -> None:
    """No module has a generic name such as `utils` or `helpers`."""
    parts = {module: {part.strip("_") for part in module.split(".")} for module in FILES if not matches(module, COMPATIBILITY)}

    assert [module for module, names in parts.items() if names & GENERIC_NAMES] == []


def test_signatures_stay_short() -> None:
    """No function has more than seven parameters; functions with more options take an object."""
    assert [fault for module, path in FILES.items() for fault in signature_faults(module, path.read_text())] == []


def test_every_path_in_the_coverage_settings_exists() -> None:
    """Every path in the coverage settings exists, so that no renamed module escapes them."""
    modules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]["include"]

    assert [module for module in modules if not list(ROOT.glob(module))] == []


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("filters", "import penstock.dataset", "imports penstock.dataset, which is not below it"),
        ("filters", "from penstock import dataset", "imports penstock.dataset, which is not below it"),
        ("filters", "from penstock import open", "imports penstock.open, which is not below it"),
        ("filters", "from penstock import codecs", "imports penstock.codecs, which is not below it"),
        ("_engine.plan.prune", "from ..window import buffer", "imports penstock._engine.window.buffer, which is not below it"),
        ("_engine.plan.prune", "from ...torch import loader", "imports penstock.torch.loader, which is not below it"),
        ("_engine.order.epoch", "def f():\n    from penstock._engine.deliver.loader import Loader", "_engine.order.epoch:2"),
        ("filters", "import_module('penstock.cli')", "imports penstock.cli, which is not below it"),
        ("formats.delta", "from penstock._engine.read.reader import read", "which is not below it"),
        ("torch", "import penstock.jax", "which is not below it"),
        ("_engine.read.reader", "def f():\n    import torch", "which belongs to torch.*, tensorflow"),
        ("dataset", "import pandas as pd", "at its top. Import it in the function"),
        ("formats.delta", "import deltalake", "at its top. Import it in the function"),
        ("codecs.image", "try:\n    import cv2\nexcept ImportError:\n    cv2 = None", "at its top"),
        ("codecs.npy", "def f():\n    from pickle import loads", "can run code that came with the data"),
        ("petastorm.etl", "import dill", "can run code that came with the data"),
        ("_engine.processes.serialize", "import marshal", "can run code that came with the data"),
        ("_engine.processes.channel", "import pickle", "can run code that came with the data"),
        ("petastorm.local_disk_cache", "import pickle", "can run code that came with the data"),
        ("filters", "import cloudpickle", "which belongs to _engine.processes.channel"),
        ("filters", "import requests", "a library that no module may import"),
    ],
)
def test_a_forbidden_import_is_reported(module: str, source: str, complaint: str) -> None:
    """`import_faults` reports each of these imports."""
    (fault,) = import_faults(module, source)

    assert complaint in fault


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dataset", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas as pd"),
        ("dataset", "def f():\n    import pandas as pd"),
        ("torch", "import torch\nfrom penstock import dataset"),
        ("formats.delta", "from penstock._engine.storage.filesystem import Storage\nfrom penstock.formats import parquet"),
        ("_engine.deliver.loader", "import json\nimport numpy as np\nfrom penstock._engine.order import epoch"),
        ("", "from .testing import kit"),
    ],
)
def test_an_allowed_import_is_accepted(module: str, source: str) -> None:
    """`import_faults` accepts each of these imports."""
    assert import_faults(module, source) == []


@pytest.mark.parametrize("module", ["_engine.elsewhere", "_engine.elsewhere.reader", "elsewhere"])
def test_a_module_without_a_layer_is_found(module: str) -> None:
    """`package_of` returns None for packages that are not in `LAYERS`."""
    assert package_of(module) is None


@pytest.mark.parametrize(
    "source",
    ["eval('1')", "builtins.exec('1')", "np.load(f, allow_pickle=True)", "np.load(f, allow_pickle=flag)"],
)
def test_an_unsafe_call_is_reported(source: str) -> None:
    """`unsafe_calls` reports each of these calls."""
    assert len(unsafe_calls("filters", source)) == 1


def test_a_long_signature_is_reported() -> None:
    """`signature_faults` reports a function with eight parameters."""
    (fault,) = signature_faults("filters", "class A:\n    def f(self, a, b, c, *d, e, f, g, **h): ...")

    assert "has 8 parameters" in fault
