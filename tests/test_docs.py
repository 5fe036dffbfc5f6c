"""Every Python block of the documentation runs, in the order of its page, and every link has a target.

A fence opens with three backticks and `python`, followed by options:

* `requires=torch,deltalake`: the block is skipped, and reported, if one of these libraries cannot be imported.
* `no-run`: the block never runs. Its first line is a comment `# not run: ` with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```([^`\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block: the words after its backticks, its text, and the line of its first backtick."""

    info: tuple[str, ...]
    text: str
    line: int

    @property
    def missing(self) -> list[str]:
        """The libraries that the block requires and that are not installed."""
        requirements = [word.removeprefix("requires=") for word in self.info if word.startswith("requires=")]
        return [name for names in requirements for name in names.split(",") if find_spec(name) is None]


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    return [
        Block(info=tuple(match[2].split()), text=dedent(match[3]), line=text.count("\n", 0, match.start()) + 1)
        for match in FENCE.finditer(text)
    ]


def marking_errors(block: Block) -> list[str]:
    """Return the errors in the first line of a block."""
    language, *options = block.info or ("",)
    if language in {"py", "python3", "pycon", "ipython"}:
        return [f"line {block.line}: write `python`, so that the block is run."]
    if language != "python":
        return []
    errors = [f"line {block.line}: {word!r} is not an option." for word in options if not is_option(word)]
    if "no-run" in options and not re.match(r"# not run: \S", block.text):
        errors.append(f"line {block.line}: begin with `# not run: ` and the reason.")
    return errors


def is_option(word: str) -> bool:
    """Return whether a word is an option of a Python block."""
    return word == "no-run" or word.startswith("requires=")


def run(page: str, text: str) -> list[str]:
    """Run the Python blocks of a page in one namespace; return the blocks skipped for missing libraries."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    skipped = []
    for block in blocks(text):
        if block.info[:1] != ("python",) or "no-run" in block.info:
            continue
        if block.missing:
            skipped.append(f"{page}:{block.line} needs {', '.join(block.missing)}")
            continue
        # Empty lines give the block the line numbers of its page.
        code = compile("\n" * block.line + block.text, page, "exec")
        exec(code, namespace)  # noqa: S102 - running the documentation is the purpose of this test
    # Functions of the page refer to the namespace; clearing it ends the iterations in it.
    namespace.clear()
    return skipped


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub computes them.

    Example:
        >>> sorted(anchors("# A `b`, and a colon: c"))
        ['a-b-and-a-colon-c']
    """
    seen: Counter[str] = Counter()
    result = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        result.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return result


def broken_links(page: Path) -> list[str]:
    """Return the links of a page to files or anchors that do not exist."""
    broken = []
    for path, anchor in LINK.findall(FENCE.sub("", page.read_text())):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(f"{path}#{anchor}")
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_python_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page run in their order, in one namespace."""
    monkeypatch.chdir(tmp_path)

    skipped = run(page.relative_to(ROOT).as_posix(), page.read_text())

    if skipped:
        pytest.skip(f"All other blocks ran. Skipped: {'; '.join(skipped)}.")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_marked_correctly(page: Path) -> None:
    """No block is skipped because of a misspelled language or without a reason."""
    assert [error for block in blocks(page.read_text()) for error in marking_errors(block)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_within_the_repository_has_a_target(page: Path) -> None:
    """Links to pages and headings stay valid when a page is moved or a heading is reworded."""
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """`broken_links` reports a missing page and a missing heading, and accepts valid links."""
    (tmp_path / "other.md").write_text("# Other page\n")
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](gone.md) [b](other.md#missing) [c](other.md#other-page) [d](#here) [e](https://x.org/#y)\n")

    assert broken_links(page) == ["gone.md#", "other.md#missing"]


def test_blocks_share_a_namespace() -> None:
    """`run` shares names between blocks, and an error has the line number of its page."""
    text = "One.\n```python\nx = 1\n```\n```bash\nfalse\n```\n```python\nassert x == 2\n```\n"

    with pytest.raises(AssertionError) as caught:
        run("page.md", text)

    assert caught.traceback[-1].lineno + 1 == 9


def test_a_block_that_needs_a_missing_library_is_reported() -> None:
    """`run` reports a block that it skips because a library is missing."""
    assert run("page.md", "```python requires=no_such_thing\nimport no_such_thing\n```\n") == ["page.md:1 needs no_such_thing"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```py\n1\n```\n", "line 1: write `python`"),
        ("\n```python no-run\nrun_for_days()\n```\n", "line 2: begin with `# not run: `"),
        ("```python norun\n1\n```\n", "'norun' is not an option"),
    ],
)
def test_an_invalid_marking_is_reported(text: str, complaint: str) -> None:
    """`marking_errors` reports each of these options and languages."""
    (block,) = blocks(text)

    assert complaint in marking_errors(block)[0]
