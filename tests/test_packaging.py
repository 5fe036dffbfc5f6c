"""The package metadata: extras, version and changelog fragments."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FILES_THAT_NAME_EXTRAS = [
    ROOT / "pyproject.toml",
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src").rglob("*.py")),
]
KINDS = ("added", "changed", "deprecated", "removed", "fixed")


def named_extras(text: str) -> set[str]:
    """Return the extras that a text tells its reader to install."""
    return {name for names in re.findall(r"penstock\[([\w\s,-]+)\]", text) for name in re.split(r"\s*,\s*", names)}


@pytest.mark.parametrize("path", FILES_THAT_NAME_EXTRAS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_extra_that_is_named_exists(path: Path) -> None:
    """Every extra that the source or the documentation says to install exists."""
    assert named_extras(path.read_text()) - EXTRAS.keys() == set()


def test_named_extras_are_found() -> None:
    """`named_extras` finds one extra, several and none."""
    text = "pip install 'penstock[delta]' or penstock[s3, azure], not penstock[{extra}] nor penstock"

    assert named_extras(text) == {"delta", "s3", "azure"}


def test_all_names_every_extra_that_users_need() -> None:
    """The extra `all` contains every other extra except `test`."""
    assert named_extras(EXTRAS["all"][0]) == EXTRAS.keys() - {"all", "test"}


def test_the_version_is_the_one_installed() -> None:
    """The tests run against this repository, not against another installed Penstock."""
    assert version("penstock") == PROJECT["version"]


def test_every_changelog_fragment_is_named_for_its_kind() -> None:
    """Every changelog fragment is named `<name>.<kind>.md` with a known kind."""
    fragments = [path.name for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]

    assert [name for name in fragments if not re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md", name)] == []
