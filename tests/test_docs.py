"""Every Python block of the documentation runs, in the order of its page.

A fence opens with three backticks and `python`. After that word may stand:

* `requires=torch,deltalake`: the block is left out where one of these cannot be imported, and the test says so.
* `no-run`: the block is never run. Its first line is a comment `# not run: ` with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```([^`\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block: what stands after its backticks, its text, and the line of its first backtick."""

    info: tuple[str, ...]
    text: str
    line: int

    @property
    def missing(self) -> list[str]:
        """The libraries that the block requires and that are not installed."""
        needed = [word.removeprefix("requires=") for word in self.info if word.startswith("requires=")]
        return [name for names in needed for name in names.split(",") if find_spec(name) is None]


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    return [
        Block(info=tuple(found[2].split()), text=dedent(found[3]), line=text.count("\n", 0, found.start()) + 1)
        for found in FENCE.finditer(text)
    ]


def faults(block: Block) -> list[str]:
    """Return what is wrong with how a block is marked."""
    language, *options = block.info or ("",)
    if language in {"py", "python3", "pycon", "ipython"}:
        return [f"line {block.line}: write `python`, so that the block is run."]
    if language != "python":
        return []
    found = [f"line {block.line}: {word!r} is not an option." for word in options if not is_option(word)]
    if "no-run" in options and not re.match(r"# not run: \S", block.text):
        found.append(f"line {block.line}: begin with `# not run: ` and the reason.")
    return found


def is_option(word: str) -> bool:
    """Return whether a word may stand after `python`."""
    return word == "no-run" or word.startswith("requires=")


def run(page: str, text: str) -> list[str]:
    """Run the Python blocks of a page in one namespace; return what was left out for want of a library."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    left_out = []
    for block in blocks(text):
        if block.info[:1] != ("python",) or "no-run" in block.info:
            continue
        if block.missing:
            left_out.append(f"{page}:{block.line} needs {', '.join(block.missing)}")
            continue
        # Empty lines before it give the block the line numbers that it has on the page.
        code = compile("\n" * block.line + block.text, page, "exec")
        exec(code, namespace)  # noqa: S102 - running the documentation is what this test is for
    # A function of a page refers to all that is on it, so that an iteration there would go on until garbage is collected.
    namespace.clear()
    return left_out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_python_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page shows works, from its first block to its last."""
    monkeypatch.chdir(tmp_path)

    left_out = run(page.relative_to(ROOT).as_posix(), page.read_text())

    if left_out:
        pytest.skip(f"All other blocks ran. Left out: {'; '.join(left_out)}.")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_marked_rightly(page: Path) -> None:
    """No block escapes by a misspelt language, and none is left out without a reason."""
    assert [fault for block in blocks(page.read_text()) for fault in faults(block)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    """A page that was moved takes its links along."""
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


def test_blocks_share_what_they_define() -> None:
    """The check itself works: a later block sees an earlier one, and an error is on the page's line."""
    text = "One.\n```python\nx = 1\n```\n```bash\nfalse\n```\n```python\nassert x == 2\n```\n"

    with pytest.raises(AssertionError) as caught:
        run("page.md", text)

    assert caught.traceback[-1].lineno + 1 == 9


def test_a_block_that_needs_a_missing_library_is_named() -> None:
    """The check itself works: what is left out is said."""
    assert run("page.md", "```python requires=no_such_thing\nimport no_such_thing\n```\n") == ["page.md:1 needs no_such_thing"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```py\n1\n```\n", "line 1: write `python`"),
        ("\n```python no-run\nrun_for_days()\n```\n", "line 2: begin with `# not run: `"),
        ("```python norun\n1\n```\n", "'norun' is not an option"),
    ],
)
def test_a_wrong_mark_is_caught(text: str, complaint: str) -> None:
    """The check itself works: each of these is a fault."""
    (block,) = blocks(text)

    assert complaint in faults(block)[0]
