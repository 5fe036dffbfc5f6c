"""Tests of `penstock inspect`: its output for Penstock tables and for other tables, and its error messages."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import penstock as ps
from penstock import codecs
from penstock.cli import commands, main
from penstock.cli._cells import in_json, in_words
from penstock.codecs import CellCodec, Npy, Tensor
from penstock.schema import Field, Schema
from penstock.write import write

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(ps.__file__).parent.parent)}

Corpus = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]


def inspected(capture: Capture, *arguments: str) -> dict[str, Any]:
    """Run `inspect --json` and return its output, with the columns also by name."""
    code = main(["inspect", *arguments, "--json"])
    captured = capture.readouterr()
    assert (code, captured.err) == (0, "")
    found: dict[str, Any] = json.loads(captured.out)
    return {**found, "by_name": {column["name"]: column for column in found["columns"]}}


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    """Return a table that pyarrow wrote: two partitions with two row groups each."""
    for day, first in (("mon", 0), ("tue", 6)):
        rows = pa.table({"id": range(first, first + 6), "word": ["a", "b", None, "d", "e", "f"]})
        (tmp_path / "clicks" / f"day={day}").mkdir(parents=True)
        pq.write_table(rows, tmp_path / "clicks" / f"day={day}" / "x.parquet", row_group_size=4)
    return tmp_path / "clicks"


def test_a_plain_parquet_table_is_described(clicks: Path, capsys: Capture) -> None:
    """The output has format, files, rows, bytes, row groups, column statistics, partitions and first rows."""
    found = inspected(capsys, str(clicks), "--rows", "2")
    size = sum(path.stat().st_size for path in clicks.rglob("*.parquet"))

    assert (found["format"], found["files"], found["rows"], found["bytes"]) == ("parquet", 2, 12, size)
    assert found["row_groups"]["count"] == 4
    assert found["row_groups"]["rows"] == {"min": 2, "median": 3.0, "max": 4}
    assert {key: found["by_name"]["id"][key] for key in ("dtype", "min", "max", "nulls")} == {
        "dtype": "int64",
        "min": 0,
        "max": 11,
        "nulls": 0,
    }
    assert (found["by_name"]["word"]["nulls"], found["by_name"]["word"]["max"]) == (2, "f")
    assert found["by_name"]["id"]["compression"] == ["snappy"]
    assert found["partitions"] == [{"name": "day", "arrow_type": "string", "values": 2, "first": ["mon", "tue"]}]
    assert found["first_rows"] == [{"id": 0, "word": "a", "day": "mon"}, {"id": 1, "word": "b", "day": "mon"}]
    assert found["warnings"] == []


def test_column_sizes_are_sums_of_their_chunks(clicks: Path, capsys: Capture) -> None:
    """Compressed and uncompressed sizes equal the sums over the column chunks that pyarrow reports."""
    found = inspected(capsys, str(clicks))
    groups = [pq.read_metadata(path).row_group(at) for path in clicks.rglob("*.parquet") for at in range(2)]

    for position, name in enumerate(("id", "word")):
        chunks = [group.column(position) for group in groups]
        assert found["by_name"][name]["bytes"] == sum(chunk.total_compressed_size for chunk in chunks)
        assert found["by_name"][name]["plain_bytes"] == sum(chunk.total_uncompressed_size for chunk in chunks)


def test_a_table_is_described_as_text(clicks: Path, capsys: Capture) -> None:
    """The text output is aligned, has units, and leaves out empty facts."""
    code = main(["inspect", str(clicks), "--rows", "1"])
    lines = capsys.readouterr().out.splitlines()

    assert code == 0
    assert lines[:2] == [f"table       {clicks}", "format      parquet"]
    assert lines[3] == "rows        12"
    assert lines[4].startswith("row groups  4; rows: 2 least, 3 median, 4 most; bytes: ")
    assert lines[5] == "partition   day (string), 2 values: mon, tue"
    assert lines[7].startswith("column  Arrow type  NumPy   nullable")
    assert lines[9].split() == ["id", "int64", "int64", "yes", *lines[9].split()[4:6], "snappy", "0", "0", "11", "no"]
    assert lines[-4:] == ["first 1 row", "id  word  day", "--  ----  ---", "0   a     mon"]


@pytest.mark.parametrize(
    ("pattern", "files"),
    [("day=mon/x.parquet", 1), ("*/x.parquet", 2), ("day=t*", 1)],
    ids=["file", "pattern", "directories"],
)
def test_files_and_patterns_are_accepted(clicks: Path, capsys: Capture, pattern: str, files: int) -> None:
    """Everything that `penstock.open` accepts can be inspected."""
    assert inspected(capsys, str(clicks / pattern))["files"] == files


def test_several_files_are_one_table(clicks: Path, capsys: Capture) -> None:
    """Several paths, such as a pattern expanded by the shell, are inspected as one table."""
    assert inspected(capsys, *map(str, sorted(clicks.rglob("*.parquet"))))["rows"] == 12


def test_storage_options_are_passed_to_the_filesystem(clicks: Path, capsys: Capture) -> None:
    """Storage options are passed on, with values that are valid JSON decoded."""
    received: list[dict[str, Any]] = []

    class Recorded(LocalFileSystem):  # type: ignore[misc] # fsspec has no annotations
        protocol = ("recorded",)

        def __init__(self, **options: Any) -> None:
            received.append(options)
            super().__init__()

    fsspec.register_implementation("recorded", Recorded, clobber=True)
    options = ("--storage-option", "limit=3", "--storage-option", "anon=true", "--storage-option", "key=a b")

    assert inspected(capsys, f"recorded://{clicks}", *options)["rows"] == 12
    assert received[0] == {"limit": 3, "anon": True, "key": "a b"}


def test_only_the_first_files_are_read(tmp_path: Path, capsys: Capture) -> None:
    """With --files only the first files are read, and the output says so."""
    for number in range(12):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"{number:02}.parquet")

    found = inspected(capsys, str(tmp_path), "--files", "3", "--rows", "9")
    main(["inspect", str(tmp_path), "--files", "3"])
    output = capsys.readouterr().out

    assert (found["files"], found["files_read"], found["rows"], found["by_name"]["id"]["max"]) == (12, 3, 3, 2)
    assert found["first_rows"] == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert "rows        3 (of 3 of 12 files)\n" in output
    assert "the other files were not looked at; --files 12 looks at all\n" in output


def test_codecs_and_shapes_are_described(tmp_path: Path, capsys: Capture) -> None:
    """The output gives codecs and shapes of the schema, and summarizes array cells instead of printing them."""
    fields = [Field("id", np.int32), Field("x", np.uint8, (2, 3), Tensor()), Field("y", np.float32, (None,), Npy())]
    cells = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    rows = [{"id": at, "x": cells[at], "y": np.ones(at, np.float32)} for at in range(2)]
    write(tmp_path / "t", Schema("Told", fields), rows)

    found = inspected(capsys, str(tmp_path / "t"))
    main(["inspect", str(tmp_path / "t")])
    output = capsys.readouterr().out

    assert [column["codec"] for column in found["columns"]][1:] == [{"name": "tensor"}, found["by_name"]["y"]["codec"]]
    assert found["by_name"]["y"]["codec"]["name"] == "npy"
    assert [column["shape"] for column in found["columns"]] == [[], [2, 3], [None]]
    assert found["first_rows"][1]["x"] == {"dtype": "uint8", "shape": [2, 3], "min": 6, "max": 11}
    assert "uint8 (2, 3) 6..11" in output
    assert "float32 (None,)" in output
    assert found["by_name"]["id"]["page_index"] == 1.0


@dataclass(frozen=True)
class WriteOnly(CellCodec):
    """A codec that can encode but not decode."""

    name = "stubborn"

    def encode(self, field: Field, cell: Any) -> bytes:  # noqa: ARG002 - independent of the cell
        """Return a fixed byte."""
        return b"?"

    def decode(self, field: Field, cell: memoryview) -> Any:  # noqa: ARG002 - independent of the cell
        """Raise ValueError."""
        msg = "it will not"
        raise ValueError(msg)


def test_a_column_that_cannot_be_decoded_shows_the_error_in_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The other columns are shown, and the exit code is 0."""
    monkeypatch.setitem(codecs._REGISTERED, "stubborn", WriteOnly)  # registered for this test alone
    schema = Schema("T", [Field("id", np.int64), Field("x", np.uint8, (2,), WriteOnly())])
    write(tmp_path / "t", schema, [{"id": 5, "x": np.zeros(2, np.uint8)}])

    found = inspected(capsys, str(tmp_path / "t"))
    main(["inspect", str(tmp_path / "t")])
    output = capsys.readouterr().out

    assert found["first_rows"][0]["id"] == 5
    assert "it will not" in found["first_rows"][0]["x"]["error"]
    assert "cannot be read: " in output


def test_an_unknown_codec_is_reported(tmp_path: Path, capsys: Capture) -> None:
    """A table with an unknown codec is described, with a warning that says what to do."""
    stored = {"penstock": 1, "name": "T", "fields": [{"name": "x", "dtype": "uint8", "shape": [2], "nullable": False}]}
    stored["fields"][0]["codec"] = {"name": "theirs", "level": 3}  # type: ignore[index]
    table = pa.table({"x": [b"?"]}).replace_schema_metadata({"penstock.schema": json.dumps(stored)})
    pq.write_table(table, tmp_path / "t.parquet")

    found = inspected(capsys, str(tmp_path / "t.parquet"))

    assert found["by_name"]["x"]["codec"] == {"name": "theirs"}
    assert found["warnings"] == [
        "Column 'x' was written with the unknown codec 'theirs'. Register its class with penstock.codecs.register, or leave "
        "the column out with .select(...)."
    ]


def test_nulls_are_shown_for_every_type(tmp_path: Path, capsys: Capture) -> None:
    """Nulls are shown as nulls, and a warning says that nulls in integers or booleans raise by default."""
    table = pa.table({"n": pa.array([1, None], pa.int32()), "b": [None, True], "l": [[1, None], None], "s": [None, "s"]})
    pq.write_table(table, tmp_path / "t.parquet")

    found = inspected(capsys, str(tmp_path / "t.parquet"))

    assert [row["n"] for row in found["first_rows"]] == [1, None]
    assert [row["b"] for row in found["first_rows"]] == [None, True]
    assert [row["s"] for row in found["first_rows"]] == [None, "s"]
    assert found["first_rows"][0]["l"]["shape"] == [2]
    assert found["warnings"] == [
        "There are nulls in the integers or booleans of 'n', 'b', which are an error by default. Set a policy: "
        ".nulls(penstock.Fill(0), 'n'), or penstock.Mask()."
    ]


def test_missing_statistics_and_page_indexes_are_reported(tmp_path: Path, capsys: Capture) -> None:
    """Warnings say that missing statistics slow down filters, and a missing page index the reading of single rows."""
    random = np.random.RandomState(0)
    large = pa.table({"id": range(2100), "blob": [random.bytes(10_000) for _ in range(2100)]})
    pq.write_table(large, tmp_path / "without.parquet", row_group_size=2000, write_statistics=False)
    pq.write_table(large, tmp_path / "with.parquet", row_group_size=2000, write_page_index=True)

    without = inspected(capsys, str(tmp_path / "without.parquet"))
    with_both = inspected(capsys, str(tmp_path / "with.parquet"))

    assert without["warnings"] == [
        "There are no statistics, or not in all row groups, of 'id': a filter on them reads every row group. Write the table "
        "with statistics.",
        "There is no page index, and row groups have up to 20.0 MB: reading one row reads its whole row group. Write the table "
        "with a page index.",
    ]
    assert (without["by_name"]["id"]["statistics"], without["by_name"]["id"]["min"]) == (False, None)
    assert with_both["warnings"] == []
    assert (with_both["by_name"]["id"]["page_index"], with_both["by_name"]["id"]["statistics"]) == (1.0, True)


def test_many_small_row_groups_and_files_are_reported(tmp_path: Path, capsys: Capture) -> None:
    """Warnings report many small row groups and many small files."""
    pq.write_table(pa.table({"id": range(150)}), tmp_path / "groups.parquet", row_group_size=1)
    (tmp_path / "files").mkdir()
    for number in range(100):
        pq.write_table(pa.table({"id": [number]}), tmp_path / "files" / f"{number:03}.parquet")

    groups = inspected(capsys, str(tmp_path / "groups.parquet"))["warnings"]
    files = inspected(capsys, str(tmp_path / "files"))["warnings"]

    assert len(groups) == 1
    assert groups[0].startswith("150 row groups of ")
    assert groups[0].endswith("Write the table with row groups of about 64 MB, or as large as the table.")
    assert len(files) == 1
    assert files[0].startswith("100 files of ")
    assert files[0].endswith("take long to list and open. Write the table with fewer files.")


def test_wide_rows_are_shown_as_columns(tmp_path: Path, capsys: Capture) -> None:
    """Rows that are too wide for a line are printed as columns side by side."""
    pq.write_table(pa.table({f"column_{at}": [at, at + 1] for at in range(30)}), tmp_path / "t.parquet")

    main(["inspect", str(tmp_path / "t.parquet")])
    lines = capsys.readouterr().out.splitlines()

    assert lines[-32].split() == ["column", "row", "0", "row", "1"]
    assert lines[-1].split() == ["column_29", "29", "30"]


def test_escape_sequences_are_not_printed(tmp_path: Path, capsys: Capture) -> None:
    """Control characters in names and cells are printed escaped."""
    pq.write_table(pa.table({"\x1b[2Jname": ["\x1b]0;title\x07", "two\nlines"]}), tmp_path / "t.parquet")

    main(["inspect", str(tmp_path / "t.parquet")])
    output = capsys.readouterr().out

    assert "\x1b" not in output
    assert r"\x1b]0;title\x07" in output
    assert r"two\nlines" in output


def test_an_empty_table_is_described(tmp_path: Path, capsys: Capture) -> None:
    """Tables without rows or without columns are not errors."""
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "rows.parquet")
    pq.write_table(pa.table({}), tmp_path / "columns.parquet")

    rows, columns = (inspected(capsys, str(tmp_path / name)) for name in ("rows.parquet", "columns.parquet"))

    assert (rows["rows"], rows["first_rows"], columns["columns"]) == (0, [], [])


CELLS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.dates(),
        st.datetimes(),
        st.decimals(),
        npst.arrays(npst.scalar_dtypes(), npst.array_shapes(min_dims=0, min_side=0, max_side=3)),
        npst.scalar_dtypes().flatmap(lambda dtype: npst.arrays(dtype, 1)).map(lambda array: array[0]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=5,
)


@given(CELLS)
def test_every_cell_can_be_formatted(cell: Any) -> None:
    """Every cell is formatted as one short printable line, and as strict JSON."""
    words = in_words(cell)

    assert words.isprintable()
    assert len(words) <= 120
    assert isinstance(json.dumps(in_json(cell), allow_nan=False), str)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/no/such/table"], "No file or directory exists at '/no/such/table'. Check the path."),
        (
            ["/no/such/*.parquet"],
            "No file or directory matches '/no/such/*.parquet'. Check the pattern.",
        ),
        (
            ["nope://table"],
            "No filesystem opens 'nope://table': Protocol not known: nope. Plain paths and the schemes of pyarrow and fsspec "
            "are supported. Check the URL, and the keys or endpoints in storage_options.",
        ),
    ],
)
def test_a_missing_table_is_reported_in_one_line(arguments: list[str], message: str, capsys: Capture) -> None:
    """The exit code is 1, and there is no traceback."""
    code = main(["inspect", *arguments])
    captured = capsys.readouterr()

    assert (code, captured.out, captured.err) == (1, "", f"penstock: {message}\n")


@pytest.mark.parametrize("arguments", [["--debug", "inspect", "/no/such"], ["inspect", "/no/such", "--debug"]])
def test_debug_shows_a_traceback(arguments: list[str], capsys: Capture) -> None:
    """--debug works before and after the command."""
    code = main(arguments)
    message = capsys.readouterr().err

    assert code == 1
    assert message.startswith("Traceback (most recent call last):\n")
    assert message.endswith("\npenstock: No file or directory exists at '/no/such'. Check the path.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["inspect"], "the following arguments are required: URL"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["inspect", "x", "--rows", "-1"], "argument --rows: '-1' is not a whole number from 0 on"),
        (["inspect", "x", "--files", "0"], "argument --files: '0' is not a whole number from 1 on"),
        (["inspect", "x", "--storage-option", "key"], "argument --storage-option: 'key' is not of the form key=value"),
    ],
)
def test_invalid_usage_is_reported(arguments: list[str], message: str, capsys: Capture) -> None:
    """The exit code is 2, and the usage is printed before the message."""
    code = main(arguments)
    printed = capsys.readouterr().err

    assert code == 2
    assert printed.startswith("usage: penstock")
    assert message in printed


def test_every_command_has_help(capsys: Capture) -> None:
    """`--help` lists each command, and each command has its own help."""
    codes = [main(["--help"]), *(main([name, "--help"]) for name in commands())]
    output = capsys.readouterr().out

    assert codes == [0] * (1 + len(commands()))
    assert {"demo", "inspect"} <= commands().keys()
    assert all(f"usage: penstock {name}" in output for name in commands())


def test_the_module_runs_the_command(clicks: Path) -> None:
    """`python -m penstock` does the same as `penstock`."""
    command = [sys.executable, "-m", "penstock", "inspect", str(clicks), "--json"]
    done = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)

    assert json.loads(done.stdout)["rows"] == 12


def test_a_closed_pipe_ends_the_command_silently(clicks: Path) -> None:
    """A closed output pipe ends the command with exit code 141 and no message."""
    command = [sys.executable, "-m", "penstock", "inspect", str(clicks)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        message = running.stderr.read()

    assert (running.returncode, message) == (141, b"")


def run_in_terminal(script: str, *arguments: str, columns: int = 160, term: str = "xterm") -> str:
    """Run a script in a pseudo-terminal and return its output."""
    controller, terminal = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": term, "COLUMNS": str(columns)}
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], env=environment, stdin=terminal, stdout=terminal, stderr=terminal
    ):
        os.close(terminal)
        found = b""
        try:
            while received := os.read(controller, 65536):
                found += received
        except OSError:  # the terminal was closed
            pass
        finally:
            os.close(controller)
    return found.decode()


RUN = "import sys; from penstock.cli import main; sys.exit(main(sys.argv[1:]))"
WITHOUT_RICH = f"import sys; sys.modules['rich.table'] = sys.modules['rich.progress'] = None\n{RUN}"


def test_tables_are_drawn_by_rich_on_a_terminal(clicks: Path) -> None:
    """Tables are drawn with rich on a terminal if it is installed."""
    pytest.importorskip("rich")

    assert "─────" in run_in_terminal(RUN, "inspect", str(clicks))
    assert "─────" not in run_in_terminal(WITHOUT_RICH, "inspect", str(clicks))


@pytest.mark.parametrize(
    ("script", "term", "columns"),
    [(RUN, "xterm", 20), (RUN, "xterm", 80), (RUN, "dumb", 130), (WITHOUT_RICH, "xterm", 80)],
    ids=["very narrow", "narrow", "dumb", "without rich"],
)
def test_a_narrow_terminal_breaks_no_words(clicks: Path, script: str, term: str, columns: int) -> None:
    """If words would have to be broken, each cell gets a line of its own."""
    output = run_in_terminal(script, "inspect", str(clicks), columns=columns, term=term)

    words = set(output.replace("\x1b[1m", " ").replace("\x1b[0m", " ").split())
    assert words >= {
        "int64",
        "string",
        "object",
        "partition",
        "compression",
        "nullable",
        "snappy",
        "min",
        "max",
        "page",
        "index",
    }


BARS: Sequence[str] = [RUN, WITHOUT_RICH]


@pytest.mark.parametrize("script", BARS, ids=["as installed", "without rich"])
def test_progress_is_shown_on_a_terminal(script: str, tmp_path: Path) -> None:
    """A progress bar is shown on a terminal, with and without rich."""
    arguments = ("demo", "--rows", "100", "--epochs", "1", "--directory", str(tmp_path / "t"))
    without_torch = f"import sys; sys.modules['torch'] = None\n{script}"

    output = run_in_terminal(without_torch, *arguments)

    due = output.partition("epoch 1: ")[2].partition(" ")[0]
    assert f"{due}/{due}" in output
    assert "each row came exactly once in each epoch" in output


def test_real_tables_are_described(corpus: Corpus, capsys: Capture) -> None:
    """Tables of other software with nested columns, summary files and unusual statistics are described."""
    mnist = inspected(capsys, str(corpus("parquet/hf-mnist")))
    taxi = inspected(capsys, str(corpus("parquet/nyc-taxi")))

    assert (mnist["rows"], mnist["row_groups"]["count"], mnist["by_name"]["label"]["max"]) == (10_000, 100, 9)
    assert mnist["first_rows"][0]["image"]["bytes"] == {"bytes": 254}
    assert taxi["rows"] == 47_177
    assert taxi["by_name"]["lpep_pickup_datetime"]["min"] == "2025-10-26 20:23:16.000000"


def test_broken_and_hostile_files_are_described_or_rejected(corpus: Corpus, capsys: Capture) -> None:
    """No broken file crashes the command; each gives exit code 0, or 1 with one message."""
    files = [
        path for folder in ("arrow-testing", "parquet-testing/bad_data") for path in corpus(f"parquet/{folder}").rglob("*")
    ]
    encrypted = sorted(corpus("parquet/parquet-testing/data").glob("*.encrypted"))
    codes = [main(["inspect", str(path)]) for path in [*files, *encrypted] if path.is_file()]
    message = capsys.readouterr().err

    assert set(codes) == {0, 1}
    assert message.count("penstock: ") == codes.count(1)


@pytest.mark.parametrize(("streams", "code"), [("TABLE >&-", 0), ("TABLE 2>&-", 0), ("TABLE.gone >&- 2>&-", 1)])
def test_closed_standard_streams_are_tolerated(tmp_path: Path, streams: str, code: int) -> None:
    """With closed standard streams, as in some cron jobs, the command prints nothing and keeps its exit code."""
    write(tmp_path / "t", data={"id": [1]})
    line = f"exec {sys.executable} -m penstock inspect " + streams.replace("TABLE", str(tmp_path / "t"))
    done = subprocess.run(["/bin/sh", "-c", line], env=ENVIRONMENT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (code, "")
