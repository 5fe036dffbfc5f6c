"""The architecture: which module may import which, and what no module may do.

The tables at the top are the rules. A new room is added to `FLOORS`, a new library to `LIBRARIES`.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "penstock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Rooms on one level; a room imports lower floors only.

    Attributes:
        rooms: Their names without `penstock.`; `name.*` is a whole family, whose members may import each other.
        ordered: Whether a room may also import those named before it on this floor.
    """

    rooms: tuple[str, ...]
    ordered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Where a library of others may be imported.

    Attributes:
        rooms: The rooms that may import it at all.
        top: Those of them that may do so at their top, where it is loaded with the room.
    """

    rooms: tuple[str, ...]
    top: tuple[str, ...] = ()


# From the ground up.
FLOORS = (
    Floor(rooms=("errors",)),
    Floor(
        rooms=(
            "randomness",
            "_alike",
            "dtypes",
            "blobs",
            "schema",
            "sequences",
            "model",
            "stable_hash",
            "stretches",
            "_literals",
            "_prune",
            "_expressions",
            "policies",
            "protocols",
        ),
        ordered=True,
    ),
    Floor(rooms=("filters", "codecs.*")),
    Floor(rooms=("_loader_options", "_schema_json", "_suits")),
    Floor(rooms=("shuffles.*", "formats.*")),
    Floor(
        rooms=(
            "_engine",
            "_engine.storage",
            "_engine.markers",
            "_engine.survey",
            "_engine.inplace",
            "_engine.swap",
            "_engine.commit",
            "_engine.agree",
            "_engine.gate",
            "_engine.execute",
            "_engine.tally",
            "_engine.advice",
            "_engine.stats",
            "_engine.meter",
            "_engine.lease",
            "_engine.wide",
            "_engine.settle",
            "_engine.kept_units",
            "_engine.budget",
            "_engine.stored",
            "_engine.thrift",
            "_engine.weigh",
            "_engine.read_faults",
            "_engine.lost",
            "_engine.footers",
            "_engine.column_sizes",
            "_engine.chunks",
            "_engine.local_cells",
            "_engine.plan",
            "_engine.fit_stored",
            "_engine.missing_columns",
            "_engine.handles",
            "_engine.keep",
            "_engine.pages",
            "_engine.excerpt",
            "_engine.anatomy",
            "_engine.plain_cells",
            "_engine.spans",
            "_engine.page_reads",
            "_engine.shelf",
            "_engine.read",
            "_engine.lookup",
            "_engine.sequence",
            "_engine.chain",
            "_engine.timeline",
            "_engine.count",  # runs the filter through read
            "_engine.order",
            "_engine.deal",
            "_engine.mixture",
            "_engine.cache",
            "_engine.lists",
            "_engine.decode",
            "_engine.decode_cells",
            "_engine.transform",
            "_engine.batch",
            "_engine.question",
            "_engine.state",
            "_engine.leg",
            "_engine.sift",
            "_engine.loose",
            "_engine.held",
            "_engine.pending",
            "_engine.wanted",
            "_engine.gather",
            "_engine.gather_sequences",
            "_engine.hand_over",
            "_engine.feed",
            "_engine.route",
            "_engine.finish",
            "_engine.bad_rows",
            "_engine.skips",
            "_engine.left_out",
            "_engine.mapped",
            "_engine.crossing",
            "_engine.objects",
            "_engine.channel",
            "_engine.faults",
            "_engine.bench",
            "_engine.worker",
            "_engine.sent",
            "_engine.crew",
            "_engine.elsewhere",
            "_engine.runs",
            "_engine.groups",
            "_engine.stream",
            "_engine.table",
            "_engine.picks",
            "_engine.data_frames",
            "_engine.access",
            "_engine.together",
            "_engine.ragged",
            "_engine.interleave",
            "_engine.mixed",
            "_engine.course",
            "_engine.loader",
            "_engine.lots",
            "_engine.lot_reader",
            "_engine.assembly",
            "_engine.cells",
            "_engine.packing",
            "_engine.nested",
            "_engine.fit",
            "_engine.encode",
            "_engine.columns",
            "_engine.hive",
            "_engine.intake",
            "_engine.type_inference",
            "_engine.layout",
            "_engine.conveyor",
            "_engine.writeback",
            "_engine.write_faults",
            "_engine.output",
            "_engine.existing",
            "_engine.progress",
            "_engine.writing",
        ),
        ordered=True,
    ),
    Floor(
        rooms=(
            "_names",
            "_sequencing",
            "_stacking",
            "_clauses",
            "_telling",
            "_answers",
            "dataset",
            "_blending",
            "mix",
            "loading",
            "opening",
            "changing",
            "_given",
            "write",
            "adopt",
        ),
        ordered=True,
    ),
    Floor(rooms=("torch.*", "tensorflow", "jax", "spark", "prometheus")),
    Floor(rooms=("petastorm.*", "deltatorch.*")),
    Floor(rooms=("dropin", "cli.*", "testing.*")),
    Floor(rooms=("_aliases.*",)),
    Floor(rooms=("__main__",)),
    Floor(rooms=("",)),  # the front door, penstock/__init__.py
)

# Imports that go up and are meant: a format finds its files through the one room that knows clouds, which of them count
# through the one that knows changes, and their columns through the one that reads footers.
EXCEPTIONS = (
    ("formats.*", "_engine.storage"),
    ("formats.*", "_engine.footers"),
    ("formats.*", "_engine.commit"),
    ("formats._petastorm_index", "_engine.thrift"),  # which of its files a summary file tells of
)

ANYWHERE = ("*",)
ADAPTERS_AND_UP = ("torch.*", "tensorflow", "jax", "spark", "petastorm.*", "deltatorch.*", "dropin", "cli.*", "testing.*")
LIBRARIES = {
    "numpy": Library(rooms=ANYWHERE, top=ANYWHERE),
    "pyarrow": Library(rooms=ANYWHERE, top=ANYWHERE),
    "fsspec": Library(
        rooms=("_engine.storage", "formats._delta_put", "petastorm.fs_utils", "testing"), top=("_engine.storage", "testing")
    ),
    "cloudpickle": Library(
        rooms=("_engine.faults", "_engine.sent", "_engine.worker", "dataset", "torch.*", "petastorm._carry"),
        top=("_engine.faults", "_engine.sent", "_engine.worker", "dataset", "torch.*", "petastorm._carry"),
    ),
    "deltalake": Library(rooms=("formats.delta",)),
    "cv2": Library(rooms=("codecs.*", *ADAPTERS_AND_UP)),
    "imagecodecs": Library(rooms=("codecs.*", *ADAPTERS_AND_UP)),
    "simplejpeg": Library(rooms=("codecs.*", *ADAPTERS_AND_UP)),
    "PIL": Library(rooms=("codecs.*", *ADAPTERS_AND_UP)),
    "pandas": Library(rooms=("_answers", "_engine.data_frames", "dataset", "write", *ADAPTERS_AND_UP)),
    "torch": Library(rooms=ADAPTERS_AND_UP, top=("torch.*", "deltatorch.*")),
    "tensorflow": Library(rooms=ADAPTERS_AND_UP, top=("tensorflow",)),
    "jax": Library(rooms=ADAPTERS_AND_UP, top=("jax",)),
    "pyspark": Library(rooms=ADAPTERS_AND_UP, top=("spark",)),
    "penstock_door": Library(rooms=("_aliases.*",), top=("_aliases.*",)),  # it lies beside them, on the path of other processes
    "prometheus_client": Library(rooms=("prometheus",)),
    "rich": Library(rooms=("cli.*", "_engine.progress"), top=("cli.*",)),
}

# What could run code that came with the data.
UNSAFE_LIBRARIES = {"pickle", "_pickle", "marshal", "shelve", "dill", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "builtins.eval", "builtins.exec"}

NAMELESS = {"util", "utils", "helper", "helpers", "common", "misc"}
MOST_PARAMETERS = 7
MANY_OPTIONS = {
    "torch._loader.loader",
    "write.write",
}  # options that users give by name, one at a time: an object of them would be in their way

# Their file names and signatures were fixed by the projects that they stand in for.
DOORS = ("petastorm.*", "deltatorch.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import of a room: a dotted name, its line, and whether it runs when the room is loaded."""

    name: str
    line: int
    top: bool


def source_files() -> dict[str, Path]:
    """Return the file of each room; the front door is called ""."""
    names = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(part for part in parts if part != "__init__"): path for path, parts in names.items()}


FILES = source_files()


def matches(room: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a room is named by one of the patterns; `name.*` names `name` too."""
    return any(fnmatchcase(room, pattern) or room == pattern.removesuffix(".*") for pattern in patterns)


def place(room: str) -> tuple[int, int] | None:
    """Return the number of a room's floor and its place there, or None for a room that stands nowhere."""
    for level, floor in enumerate(FLOORS):
        for number, name in enumerate(floor.rooms):
            if matches(room, (name,)):
                return level, number
    return None


def imports(room: str, source: str) -> Iterator[Import]:
    """Yield every import of a source text, those in functions and those by a literal name included."""
    tree = ast.parse(source)
    package = ["penstock", *room.split(".")] if room else ["penstock"]
    if room and FILES.get(room, Path()).name != "__init__.py":
        package.pop()
    later = {id(inner) for node in ast.walk(tree) for part in run_later(node) for inner in ast.walk(part)}
    for node in ast.walk(tree):
        for name in imported_names(node, package):
            yield Import(name=name, line=getattr(node, "lineno", 0), top=id(node) not in later)


def run_later(node: ast.AST) -> Sequence[ast.AST]:
    """Return what in a node is not run when its module is loaded."""
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


def imported_room(name: str) -> str | None:
    """Return the room that a dotted name lies in, or None for a name that is not ours."""
    first, *rest = name.split(".")
    if first != "penstock":
        return None
    named = {room.removesuffix(".*") for floor in FLOORS for room in floor.rooms}
    while ".".join(rest) not in FILES.keys() | named:
        rest.pop()
    return ".".join(rest)


def may_import(room: str, other: str) -> bool:
    """Return whether a room may import another."""
    mine, theirs = place(room), place(other)
    if mine is None or theirs is None:
        return mine is None  # A room that stands nowhere is reported on its own.
    (level, number), (lower, earlier) = mine, theirs
    if lower < level or any(matches(room, (up,)) and matches(other, (down,)) for up, down in EXCEPTIONS):
        return True
    name = FLOORS[level].rooms[number]
    family = earlier == number and name.endswith(".*")
    return lower == level and (family or (FLOORS[level].ordered and earlier < number))


def import_faults(room: str, source: str) -> list[str]:
    """Return what is wrong with the imports of a source text, one sentence each."""
    faults = []
    for found in imports(room, source):
        other, library = imported_room(found.name), found.name.split(".")[0]
        at = f"{room or '__init__'}:{found.line} imports {found.name}"
        if other is not None:
            if not may_import(room, other):
                faults.append(f"{at}, which is not below it. See FLOORS in tests/test_architecture.py.")
        elif library in UNSAFE_LIBRARIES:
            faults.append(f"{at}, which can run code that came with the data. Nothing may.")
        elif library in LIBRARIES:
            allowed = LIBRARIES[library]
            if not matches(room, allowed.rooms):
                faults.append(f"{at}, which belongs to {', '.join(allowed.rooms)}.")
            elif found.top and not matches(room, allowed.top):
                faults.append(f"{at} at its top. Import it in the function that needs it.")
        elif library not in sys.stdlib_module_names:
            faults.append(f"{at}, a library that no room may import. Add it to LIBRARIES, or do without.")
    return faults


def unsafe_calls(room: str, source: str) -> list[str]:
    """Return the calls of a source text that could run code that came with the data."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            if ast.unparse(node.func) in UNSAFE_CALLS:
                faults.append(f"{room}:{node.lineno} runs text as code.")
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if given.get("allow_pickle", "False") != "False":
                faults.append(f"{room}:{node.lineno} may unpickle. Pass allow_pickle=False.")
    return faults


def signature_faults(room: str, source: str) -> list[str]:
    """Return the functions of a source text that have too many parameters."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        count = len(parameters(node))
        if count > MOST_PARAMETERS and f"{room}.{node.name}" not in MANY_OPTIONS and not matches(room, DOORS):
            faults.append(f"{room}.{node.name} has {count} parameters, more than {MOST_PARAMETERS}. Make an object of them.")
    return faults


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the parameters of a function, those by keyword included, without `self` and `cls`."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [arg.arg for arg in named if arg is not None and arg.arg not in {"self", "cls"}]


@pytest.mark.parametrize("room", FILES)
def test_every_room_stands_on_a_floor(room: str) -> None:
    """A new room says where it stands before it imports or is imported."""
    assert place(room) is not None, f"penstock.{room} stands on no floor. Add it to FLOORS in tests/test_architecture.py."


@pytest.mark.parametrize("room", FILES)
def test_imports_go_down_only(room: str) -> None:
    """A room imports lower floors and the libraries it may have, in functions too."""
    assert import_faults(room, FILES[room].read_text()) == []


def test_imports_make_no_circle() -> None:
    """No room needs itself by way of others, not even inside one family."""
    graph = {
        room: {other for found in imports(room, path.read_text()) if (other := imported_room(found.name)) is not None} - {room}
        for room, path in FILES.items()
    }

    try:
        circle = []
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]

    assert circle == []


@pytest.mark.parametrize("room", FILES)
def test_nothing_runs_what_came_with_the_data(room: str) -> None:
    """No room evaluates text or lets NumPy unpickle."""
    assert unsafe_calls(room, FILES[room].read_text()) == []


@pytest.mark.parametrize("room", [room for room in FILES if not matches(room, DOORS)])
def test_rooms_are_named_for_what_they_do(room: str) -> None:
    """No room is a drawer for what belongs elsewhere."""
    assert NAMELESS.isdisjoint(part.strip("_") for part in room.split("."))


@pytest.mark.parametrize("room", FILES)
def test_signatures_stay_short(room: str) -> None:
    """A signature fits one glance; more options make an object."""
    assert signature_faults(room, FILES[room].read_text()) == []


def test_every_pure_room_exists() -> None:
    """The rooms whose coverage is demanded are there, so that none escapes by a new name."""
    rooms = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]["include"]

    assert [room for room in rooms if not list(ROOT.glob(room))] == []


@pytest.mark.parametrize(
    ("room", "source", "complaint"),
    [
        ("filters", "import penstock.dataset", "imports penstock.dataset, which is not below it"),
        ("filters", "from penstock import dataset", "imports penstock.dataset, which is not below it"),
        ("filters", "from penstock import open", "imports penstock.open, which is not below it"),
        ("_engine.plan", "from . import read", "imports penstock._engine.read, which is not below it"),
        ("_engine.plan", "from ..torch import loader", "imports penstock.torch.loader, which is not below it"),
        ("_engine.order", "def f():\n    from penstock._engine.loader import Loader", "_engine.order:2"),
        ("filters", "import_module('penstock.cli')", "imports penstock.cli, which is not below it"),
        ("formats.delta", "from penstock._engine.read import read", "which is not below it"),
        ("torch", "import penstock.jax", "which is not below it"),
        ("_engine.read", "def f():\n    import torch", "which belongs to torch.*, tensorflow"),
        ("dataset", "import pandas as pd", "at its top. Import it in the function"),
        ("formats.delta", "import deltalake", "at its top. Import it in the function"),
        ("codecs.image", "try:\n    import cv2\nexcept ImportError:\n    cv2 = None", "at its top"),
        ("codecs.npy", "def f():\n    from pickle import loads", "can run code that came with the data"),
        ("petastorm.etl", "import dill", "can run code that came with the data"),
        ("filters", "import cloudpickle", "which belongs to _engine.faults"),
        ("filters", "import requests", "a library that no room may import"),
    ],
)
def test_a_wrong_import_is_caught(room: str, source: str, complaint: str) -> None:
    """The check itself works: each of these is a fault."""
    (fault,) = import_faults(room, source)

    assert complaint in fault


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("dataset", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas as pd"),
        ("dataset", "def f():\n    import pandas as pd"),
        ("torch", "import torch\nfrom penstock import dataset"),
        ("formats.delta", "from penstock._engine.storage import Storage\nfrom penstock.formats import parquet"),
        ("_engine.loader", "import json\nimport numpy as np\nfrom penstock._engine import order, read"),
        ("", "from .testing import kit"),
    ],
)
def test_a_right_import_passes(room: str, source: str) -> None:
    """The check itself works: none of these is a fault."""
    assert import_faults(room, source) == []


@pytest.mark.parametrize(
    "source",
    ["eval('1')", "builtins.exec('1')", "np.load(f, allow_pickle=True)", "np.load(f, allow_pickle=flag)"],
)
def test_an_unsafe_call_is_caught(source: str) -> None:
    """The check itself works: each of these could run what came with the data."""
    assert len(unsafe_calls("filters", source)) == 1


def test_a_long_signature_is_caught() -> None:
    """The check itself works: eight parameters are too many."""
    (fault,) = signature_faults("filters", "class A:\n    def f(self, a, b, c, *d, e, f, g, **h): ...")

    assert "has 8 parameters" in fault
