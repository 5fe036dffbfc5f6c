"""What the package promises about itself: its extras, its files, its news."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SPEAKING = [
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


@pytest.mark.parametrize("path", SPEAKING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_extra_that_is_named_exists(path: Path) -> None:
    """Whoever follows a message or a page to `pip install` arrives."""
    assert named_extras(path.read_text()) - EXTRAS.keys() == set()


def test_named_extras_are_found() -> None:
    """The check itself works: one extra, several, and none."""
    text = "pip install 'penstock[delta]' or penstock[s3, azure], not penstock[{extra}] nor penstock"

    assert named_extras(text) == {"delta", "s3", "azure"}


def test_all_names_every_extra_that_users_need() -> None:
    """`penstock[all]` leaves nothing out."""
    assert named_extras(EXTRAS["all"][0]) == EXTRAS.keys() - {"all", "test"}


def test_the_version_is_the_one_installed() -> None:
    """The tests run against this repository, not against another installed Penstock."""
    assert version("penstock") == PROJECT["version"]


def test_every_news_fragment_is_named_for_its_kind() -> None:
    """A fragment that the changelog cannot place is found at once."""
    fragments = [path.name for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]

    assert [name for name in fragments if not re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md", name)] == []
