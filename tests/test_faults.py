"""Data files that are damaged, gone, refused or replaced while they are read: told with their place, once and again."""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs as pafs
from rights import run_without_rights

import penstock as ps
from penstock._engine.parquet import thrift
from penstock.codecs import Raw
from penstock.errors import DataChangedError, DataError, PenstockError
from penstock.formats.parquet import ParquetFormat
from penstock.schema import Field, Schema

FILES, GROUPS, ROWS = 4, 6, 10
"""Files of a table, row groups of a file, and rows of a row group."""

EACH = GROUPS * ROWS
CHANGED = "the file was changed after the table was opened: its size or the time of its last write differ. Open the table again"


def columns(first: int, count: int) -> pa.Table:
    """Return rows of every kind of column."""
    numbers = range(first, first + count)
    random = np.random.default_rng(first)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "maybe": pa.array([None if number % 7 == 0 else number / 3 for number in numbers]),
            "word": [f"word {number % 5}" for number in numbers],
            "list": [list(range(number % 4)) for number in numbers],
            "bytes": [random.bytes(40) for _ in numbers],
            "flag": [number % 3 == 0 for number in numbers],
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a directory of files with page checksums."""
    place = tmp_path / "table"
    place.mkdir()
    for file in range(FILES):
        path = place / f"{file}.parquet"
        pq.write_table(columns(file * EACH, EACH), path, row_group_size=ROWS, write_page_checksum=True, use_dictionary=["word"])
    return place


def threads() -> list[str]:
    """Return the names of our threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]


def told(batches: Iterator[Any]) -> tuple[int, str]:
    """Return how many batches came before the error, and its text, after a look that it stays and that no thread does."""
    found: list[Any] = []
    with pytest.raises(DataError) as caught:
        found.extend(batches)
    with pytest.raises(type(caught.value)) as again:
        next(batches)
    assert again.value is caught.value
    assert threads() == []
    return len(found), str(caught.value)


def begun(ds: ps.Dataset) -> Iterator[Any]:
    """Return batches of which the first has come; what is read ahead is not much more."""
    batches = iter(ds.using(threads=1))
    next(batches)
    return batches


# ------------------------------------------------------------------------------------------------- before it is planned


@pytest.mark.parametrize("ask", [lambda ds: list(ds.batch(ROWS)), lambda ds: ds.num_rows, lambda ds: ds[0]])
def test_a_file_that_is_gone_before_anything_is_planned_is_told(table: Path, ask: Callable[[ps.Dataset], Any]) -> None:
    """A table that was opened and not asked yet: the file, and that it was there, as in mid-epoch."""
    ds = ps.open(table)
    (table / "2.parquet").unlink()
    with pytest.raises(DataChangedError) as raised:
        ask(ds)

    assert str(raised.value) == (
        f"{table}/2.parquet: the file is gone. It was there when the table was opened. Open the table again."
    )


@pytest.mark.parametrize("size", [0, 3, 500])
def test_a_file_that_is_cut_before_anything_is_planned_is_told(table: Path, size: int) -> None:
    """It was changed, and nobody is told to write again what another has written."""
    ds = ps.open(table)
    os.truncate(table / "2.parquet", size)
    with pytest.raises(DataChangedError) as raised:
        list(ds.batch(ROWS))

    assert str(raised.value) == f"{table}/2.parquet: {CHANGED}; a state saved before cannot be resumed."


def test_a_file_that_is_replaced_before_anything_is_planned_is_told(table: Path) -> None:
    """Also if the new one can be read, and if it is of the same size and cannot be."""
    for path, content in (("1.parquet", (table / "0.parquet").read_bytes()[:-4] + b"more"), ("2.parquet", None)):
        ds, file = ps.open(table), table / path
        before = file.stat()
        if content is None:
            pq.write_table(columns(0, 2 * EACH), file)
        else:
            file.write_bytes((content * 2)[: before.st_size])
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
        with pytest.raises(DataChangedError) as raised:
            _ = ds.num_rows

        assert str(raised.value) == f"{file}: {CHANGED}; a state saved before cannot be resumed."
        pq.write_table(columns(EACH, EACH), file)


# ---------------------------------------------------------------------------------------------------------- in mid-epoch


@pytest.mark.parametrize("size", [0, 3, 500])
def test_a_file_that_is_cut_in_mid_epoch_is_told(table: Path, size: int) -> None:
    """Whether it is open already or not: the file, the row group, and what to do."""
    batches = begun(ps.open(table).batch(ROWS))
    os.truncate(table / "0.parquet", size)
    count, text = told(batches)

    assert count < GROUPS
    assert text.startswith(f"{table}/0.parquet, row group {count + 1}: {CHANGED}")

    rest = begun(ps.open([table / "1.parquet", table / "2.parquet"]).batch(ROWS))
    os.truncate(table / "2.parquet", size)
    assert told(rest) == (GROUPS - 1, f"{table}/2.parquet, row group 0: {CHANGED}; a state saved before cannot be resumed.")


def test_a_file_that_vanishes_in_mid_epoch_is_told(table: Path) -> None:
    """A file that is open is read to its end, for the system keeps it; one that is not is missed."""
    batches = begun(ps.open(table).batch(ROWS))
    (table / "0.parquet").unlink()
    (table / "2.parquet").unlink()

    assert told(batches) == (
        2 * GROUPS - 1,
        f"{table}/2.parquet, row group 0: the file is gone. It was there when the table was opened. Open the table again.",
    )


def test_a_file_that_is_replaced_in_mid_epoch_is_told(table: Path) -> None:
    """Rows of the old file come as long as it is open; those of the new one never do."""
    ds = ps.open(table).batch(ROWS)
    batches = begun(ds)
    for file in (0, 1):
        pq.write_table(columns(1000, EACH), table / "new", row_group_size=ROWS)
        (table / "new").rename(table / f"{file}.parquet")

    found = [batch["id"].tolist() for _, batch in zip(range(GROUPS - 1), batches, strict=False)]
    assert sum(found, []) == list(range(ROWS, EACH))
    assert told(batches)[1].startswith(f"{table}/1.parquet, row group 0: {CHANGED}")
    with pytest.raises(DataChangedError, match=r"0\.parquet, row group 0: the file was changed after"):
        next(iter(ds))


def test_a_file_that_is_written_to_in_mid_epoch_is_told(table: Path) -> None:
    """It is open already, has as many bytes as before, and can be read: its new rows never come."""
    before = (table / "0.parquet").stat()
    batches = begun(ps.open(table).batch(ROWS))
    pq.write_table(columns(0, EACH), table / "new", row_group_size=ROWS)
    content = bytearray((table / "new").read_bytes())
    with (table / "0.parquet").open("r+b") as file:
        file.write(content)
    os.utime(table / "0.parquet", ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))

    count, text = told(batches)
    assert count < GROUPS
    assert text.startswith(f"{table}/0.parquet, row group {count + 1}: {CHANGED}")


def test_cells_of_a_file_that_is_written_to_are_refused(tmp_path: Path) -> None:
    """Large cells stay in their file until their batch is made; what another has written there meanwhile never comes."""
    field = ps.Field("x", np.uint8, (1 << 14,), ps.codecs.Npy())
    for name, value in (("old", 7), ("new", 9)):
        rows = ({"x": np.full(1 << 14, value, np.uint8)} for _ in range(64))
        ps.write(tmp_path / name, ps.Schema("Cells", [field]), data=rows, compression="none")
    old, new = (next((tmp_path / name).glob("*.parquet")) for name in ("old", "new"))
    assert old.stat().st_size == new.stat().st_size
    before = old.stat()
    batches = iter(ps.open(tmp_path / "old").batch(1).using(threads=1))
    seen = [int(next(batches)["x"].max())]
    with old.open("r+b") as file:
        file.write(new.read_bytes())
    os.utime(old, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))

    with pytest.raises(DataError, match=r"row group 0, row \d+, column 'x': .* was written to while it was being read"):
        seen += [int(batch["x"].max()) for batch in batches]
    assert set(seen) == {7}


def test_a_directory_in_place_of_a_file_is_told(table: Path) -> None:
    """It cannot be opened, whatever the rights of who reads."""
    batches = begun(ps.open(table).batch(ROWS))
    (table / "1.parquet").unlink()
    (table / "1.parquet").mkdir()

    count, text = told(batches)
    assert count == GROUPS - 1
    assert text.startswith(f"{table}/1.parquet, row group 0: cannot be read: ")
    assert text.endswith(". The table says it has 10 rows. Check the file.")


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    """Who has no right to read it is told so."""
    script = """
import os, sys
import penstock as ps

place = sys.argv[1]
ps.write(place + "/t", data={"id": list(range(40))}, row_group_rows=10, file_mb=0.0001)
ds = ps.open(place + "/t").batch(10).using(threads=1)
assert len(ds) == 4
last = ps.open(place + "/t").with_row_ids()[39]["_file"]
os.chmod(last, 0)
count = 0
try:
    for batch in ds:
        count += 1
except ps.errors.DataError as error:
    print(count, str(error).replace(last, "LAST"))
try:
    ps.open(place + "/t")
except ps.errors.DataError as error:
    print(str(error).replace(last, "LAST"))
os.chmod(last, 0o600)
os.chmod(place + "/t/_common_metadata", 0)
try:
    ps.open(place + "/t")
except ps.errors.DataError as error:
    print(str(error).replace(place, "PLACE"))
os.chmod(place + "/t", 0)
try:
    ps.open(place + "/t")
except ps.errors.TableNotFoundError as error:
    print(str(error).replace(place, "PLACE"))
os.chmod(place + "/t", 0o700)
"""
    done = run_without_rights(script, tmp_path)

    assert done.stderr == ""
    assert done.stdout == (
        "3 LAST, row group 0: cannot be read: Permission denied. The table says it has 10 rows. Get the right to read it.\n"
        "LAST: the footer cannot be read: Permission denied. Get the right to read it.\n"
        "PLACE/t/_common_metadata holds the columns of the table and may not be read. Get the permission to read it.\n"
        "'PLACE/t' cannot be looked into: Permission denied. Check the path, and what you may read there.\n"
    )


class Faulty(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
    """Storage that fails from some read on, in its own words."""

    def __init__(self, most: int) -> None:
        """Store how many reads go well."""
        super().__init__(fsspec.filesystem("file"))
        self.left = most

    def open_input_file(self, path: str) -> Any:
        """Return a file whose reads fail when there were too many."""
        outer, file = self, self.fs.open(path, "rb")

        class Watched:
            closed = False

            def read(self, size: int = -1) -> bytes:
                outer.left -= 1
                if outer.left < 0:
                    raise OSError(errno.EIO, "The disk is broken")
                return bytes(file.read(size))

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

        return pa.PythonFile(Watched(), mode="r")


def test_storage_that_fails_is_told(table: Path) -> None:
    """Whenever it begins to, opening or reading says which file, and in whose words."""

    def read(handler: Faulty) -> None:
        list(ps.open(str(table), filesystem=pafs.PyFileSystem(handler)).batch(ROWS).using(threads=1))

    sound = Faulty(1 << 60)
    read(sound)
    seen = set()
    for most in range((1 << 60) - sound.left):
        with pytest.raises(DataError) as caught:
            read(Faulty(most))
        text = str(caught.value)
        seen.add(text.partition("cannot be read")[0].rpartition("/")[2])
        assert text.startswith(f"{table}/")
        assert "The disk is broken" in f"{text} {caught.value.__cause__}"
        assert threads() == []

    assert any("row group" in place for place in seen), seen


# ------------------------------------------------------------------------------------------------------------- bit flips


def pages(path: Path) -> list[tuple[int, str, int, int, int]]:
    """Return row group, column, kind, first and last byte of every page of a file."""
    data = path.read_bytes()
    footer = pq.read_metadata(path)
    found = []
    for group in range(footer.num_row_groups):
        for at in range(footer.num_columns):
            chunk = footer.row_group(group).column(at)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            stop = start + chunk.total_compressed_size
            while start < stop:
                header, size = thrift.parse_start(data[start:stop], {1: int, 3: int, 1 << 14: int})
                begin = start + size
                start = begin + header[3]
                found.append((group, chunk.path_in_schema.partition(".")[0], header[1], begin, start))
    return found


def flipped(path: Path, at: int, bit: int) -> None:
    """Change one bit of a file, and nothing of what the system tells of it."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_bit_that_was_flipped_is_found_in_every_kind_of_page(tmp_path: Path, version: str, compression: str) -> None:
    """With checksums, whatever page it lies in: file, row group and column are told, and nothing wrong comes before it."""
    path = tmp_path / "a.parquet"
    how = {"data_page_version": version, "compression": compression, "use_dictionary": ["word"], "data_page_size": 100}
    pq.write_table(columns(0, 30), path, row_group_size=15, write_page_checksum=True, **how)
    random = np.random.default_rng(0)
    kinds = set()
    for group, name, kind, begin, end in pages(path):
        if begin == end:
            continue
        kinds.add(kind)
        at, bit = int(random.integers(begin, end)), int(random.integers(8))
        flipped(path, at, bit)
        ds = ps.open(path).batch(15)
        count, text = told(iter(ds.using(checksums=True)))
        flipped(path, at, bit)

        assert count == group
        assert text == (
            f"{path}, row group {group}, column {name!r}: a page does not match its checksum: its bytes changed in "
            "storage. The table says it has 15 rows. Restore the file, or write it again."
        )
    assert kinds == ({0, 2} if version == "1.0" else {2, 3})
    assert len(list(ps.open(path).batch(15).using(checksums=True))) == 2


BLOBS = Schema(
    "Blobs", [Field("id", np.int64), Field("small", np.uint8, (50,), Raw()), Field("large", np.uint8, (40_000,), Raw())]
)


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of cells that are read as they lie, of those that are copied and those that stay in the file."""
    place = tmp_path_factory.mktemp("blobs") / "t"
    random = np.random.default_rng(0)
    rows = 12
    cells = {"small": random.integers(0, 256, (rows, 50), np.uint8), "large": random.integers(0, 256, (rows, 40_000), np.uint8)}
    ps.write(place, BLOBS, {"id": np.arange(rows), **cells}, row_group_rows=4)
    return place


@settings(max_examples=25)
@given(st.data())
def test_a_flipped_bit_in_cells_that_are_read_as_they_lie_is_found(blobs: Path, data: st.DataObject) -> None:
    """Asked for checksums, no reader of ours goes around them: not batches, not rows by number, not a filter."""
    (path,) = blobs.glob("*.parquet")
    group, name, _, begin, end = data.draw(st.sampled_from([page for page in pages(path) if page[1] != "id"]))
    at, bit = data.draw(st.integers(begin, end - 1)), data.draw(st.integers(0, 7))
    ds = ps.open(blobs).using(checksums=True)
    flipped(path, at, bit)
    try:
        texts = [told(iter(ds.batch(4)))[1], told(iter(ds.batch(5).shuffle().batch(3)))[1]]
        for rows in ([4 * group], range(12)):
            with pytest.raises(DataError) as caught:
                ds.take(rows)
            texts.append(str(caught.value))
        with pytest.raises(DataError) as caught:
            ds.to_arrow()
        texts.append(str(caught.value))
    finally:
        flipped(path, at, bit)

    assert all(f"row group {group}, column {name!r}: a page does not match its checksum" in text for text in texts), texts
    assert len(list(ds.batch(4))) == 3


def test_checksums_change_nothing_in_what_comes(table: Path, blobs: Path) -> None:
    """The same rows in the same order, with and without them, and from files that were written without."""
    for place in (table, blobs):
        ds = ps.open(place).shuffle(ps.WindowShuffle(rows=20), seed=3).batch(4)
        plain, checked = (list(each) for each in (ds, ds.using(checksums=True)))
        assert ds == ds.using(checksums=True)
        assert len(plain) == len(checked)
        for one, two in zip(plain, checked, strict=True):
            assert one.keys() == two.keys()
            assert one["id"].tolist() == two["id"].tolist()
    whole = io.BytesIO()
    pq.write_table(columns(0, 10), whole)
    (table / "plain.parquet").write_bytes(whole.getvalue())
    assert sum(len(batch["id"]) for batch in ps.open(table / "plain.parquet").batch(4).using(checksums=True)) == 10
    with pytest.raises(ps.errors.ArgumentError, match=r"using\(\) got checksums='yes'; expected a bool"):
        ps.open(table).using(checksums="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("column", ["small", "large"])
def test_cells_of_a_file_that_is_cut_are_told(tmp_path: Path, column: str) -> None:
    """Also those that stay in the file until their batch is made say where they lie."""
    random, rows = np.random.default_rng(0), 80
    cells = {"small": random.integers(0, 256, (rows, 50), np.uint8), "large": random.integers(0, 256, (rows, 40_000), np.uint8)}
    ps.write(tmp_path / "t", BLOBS, {"id": np.arange(rows), **cells}, row_group_rows=4)
    (path,) = (tmp_path / "t").glob("*.parquet")
    last = [page for page in pages(path) if page[1] == column][-1]
    batches = begun(ps.open(tmp_path / "t").select("id", column).batch(2))
    os.truncate(path, last[3] + 20)

    _, text = told(batches)
    assert text.startswith(str(path))
    assert CHANGED in text or "the file ends after" in text
    assert "Open the table again" in text or "open the table again" in text


@pytest.mark.parametrize("kept", [0, 3, 24, 2000])
def test_a_file_that_is_no_parquet_is_told_when_the_table_is_opened(table: Path, kept: int) -> None:
    """Before anything is read of it."""
    path = table / "a.parquet"
    path.write_bytes((table / "0.parquet").read_bytes()[:kept])

    with pytest.raises(DataError, match=rf"/a\.parquet: not a Parquet file: it has {kept} bytes and .* Write the file again"):
        ps.open(path)


# ---------------------------------------------------------------------------------------- values that a type does not have

DAMAGED = b"\xffz"
"""Bytes that are no UTF-8."""


def decimals(precision: int, *numbers: int) -> pa.Array:
    """Return decimals without a look at whether they fit."""
    data = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    return pa.Array.from_buffers(pa.decimal128(precision, 2), len(numbers), [None, pa.py_buffer(data)])


def texts(*cells: bytes | None) -> pa.Array:
    """Return text without a look at whether it is UTF-8."""
    return pa.array(cells, pa.binary()).view(pa.string())


TEXT = texts(b"a", None, b"\xc3\xa9", DAMAGED)
WRONG = {
    "text": TEXT,
    "decimal": decimals(4, 1, 2, -9999, 10000),
    "time": pa.array([1, 2, None, 86_400_000], pa.int32()).view(pa.time32("ms")),
    "list": pa.ListArray.from_arrays(pa.array([0, 1, 3, 3, 4], pa.int32()), TEXT),
    "struct": pa.StructArray.from_arrays([pa.array(range(4)), decimals(4, 1, 2, 3, 10000)], names=["n", "d"]),
    "map": pa.MapArray.from_arrays(pa.array([0, 0, 1, 2, 3], pa.int32()), pa.array([1, 2, 3]), texts(b"a", b"b", DAMAGED)),
}
"""Columns of four rows, the last of which is wrong."""

UTF8 = (
    "its text is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte. Write it again as UTF-8 "
    "or as binary. To read the bytes as they are, open Parquet files with a schema that has pyarrow.binary() there: "
    "format=ParquetFormat(columns=schema)."
)
PROBLEMS = dict.fromkeys(("text", "list", "map"), UTF8) | {
    "decimal": "its value is not valid: Decimal value 10000 does not fit in precision of decimal128(4, 2). "
    "Restore the file, or write it again.",
    "struct": "its value is not valid: Decimal value 10000 does not fit in precision of decimal128(4, 2). "
    "Restore the file, or write it again.",
    "time": "its value is not valid: time32[ms] 86400000 is not within the acceptable range of [0, 86400000) ms. "
    "Restore the file, or write it again.",
}


@pytest.fixture(params=WRONG)
def wrong(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """Return a file of two row groups whose very last cell is no value of its type, and the name of its column."""
    name: str = request.param
    good = WRONG[name].slice(0, 3)
    table = pa.concat_tables([pa.table({name: good}), pa.table({name: WRONG[name]})])
    path = tmp_path / "wrong.parquet"
    pq.write_table(table.add_column(0, "id", [range(7)]).combine_chunks(), path, row_group_size=5)
    return path, name


@pytest.mark.parametrize("ask", [
    ps.Dataset.to_arrow,
    ps.Dataset.to_pandas,
    lambda ds: ds.where(ps.col("id") > 2).to_arrow(),
    lambda ds: ds.select(".*").take([6]),
    lambda ds: ds[-1],
    lambda ds: list(ds.nulls(ps.Mask(), ".*").ragged(ps.AsObjects(), ".*").batch(2)),
])  # fmt: skip
def test_a_value_that_its_type_does_not_have_is_told(wrong: tuple[Path, str], ask: Callable[[ps.Dataset], Any]) -> None:
    """Text that is not UTF-8, decimals of too many digits and hours after midnight: file, row group, row and column."""
    path, name = wrong
    with pytest.raises(DataError) as raised:
        ask(ps.open(path))

    assert str(raised.value) == f"{path}, row group 1, row 6, column {name!r}: {PROBLEMS[name]}"


def test_rows_before_a_wrong_value_can_be_had(wrong: tuple[Path, str]) -> None:
    """What is not handed out is not looked at."""
    path, _ = wrong
    stored = pq.read_table(path)

    assert ps.open(path).limit(6).to_arrow() == stored.slice(0, 6)
    assert ps.open(path).where(ps.col("id") != 6).to_arrow() == stored.slice(0, 6)
    assert ps.open(path).select("id").to_arrow().num_rows == 7


def test_a_wrong_value_makes_a_bad_row(wrong: tuple[Path, str]) -> None:
    """It can be skipped like a cell that cannot be decoded."""
    path, name = wrong
    ds = ps.open(path).nulls(ps.Mask(), ".*").ragged(ps.AsObjects(), ".*").batch(7)
    loader = ps.loader(ds.on_bad_row("skip", most=1))
    (batch,) = loader
    (row,) = loader.skipped

    assert batch["id"].tolist() == [0, 1, 2, 3, 4, 5]
    assert (row.row_group, row.row, row.column, row.problem) == (1, 6, name, PROBLEMS[name])


def test_text_that_is_not_utf_8_can_be_read_as_bytes(tmp_path: Path) -> None:
    """As the error says, in flat columns and in lists."""
    path = tmp_path / "latin.parquet"
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3, 4], pa.int32()), TEXT)
    pq.write_table(pa.table({"text": TEXT, "list": lists}), path)
    schema = pa.schema({"text": pa.binary(), "list": pa.list_(pa.binary())})
    ds = ps.open(path, format=ParquetFormat(columns=schema))

    assert ds.to_arrow().to_pydict() == {
        "text": [b"a", None, b"\xc3\xa9", DAMAGED],
        "list": [[b"a"], [], [None, b"\xc3\xa9"], [DAMAGED]],
    }
    assert ds[3]["text"] == DAMAGED


@pytest.mark.parametrize("ask", [
    ps.Dataset.to_arrow,
    lambda ds: list(ds.batch(4)),
    lambda ds: ds.where(ps.col("word") != "word 3").to_arrow(),
    lambda ds: ds[EACH],
    lambda ds: ds.take([0, EACH, EACH + 30]),
])  # fmt: skip
def test_names_in_a_footer_that_are_not_utf_8_are_told(table: Path, ask: Callable[[ps.Dataset], Any]) -> None:
    """Also in a file that was not looked at when the table was opened."""
    path = table / "1.parquet"
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[: -8 - size] + data[-8 - size :].replace(b"flag", b"fl\xffg", 1))
    with pytest.raises(DataError) as raised:
        ask(ps.open(table))

    assert str(raised.value).startswith(f"{path}")
    assert "a name in its footer is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 2" in str(raised.value)
    with pytest.raises(DataError, match=r"1\.parquet: the footer cannot be read: a name in it is not UTF-8: 'utf-8' codec"):
        ps.open(path)


# -------------------------------------------------------------------------------------------------------------- any damage

LAYOUTS = {
    "plain": {"compression": "none", "use_dictionary": False},
    "dictionary": {"compression": "none", "write_page_index": True, "data_page_size": 100, "write_batch_size": 4},
    "snappy": {"compression": "snappy", "data_page_version": "2.0", "write_page_index": True},
    "zstd": {"compression": "zstd", "store_schema": False, "write_page_checksum": True},
    "delta": {
        "compression": "none",
        "use_dictionary": False,
        "column_encoding": {"id": "DELTA_BINARY_PACKED", "word": "DELTA_BYTE_ARRAY", "time": "DELTA_BINARY_PACKED"},
    },
}


def whole_files() -> dict[str, bytes]:
    """Return files of thirty rows in three row groups, with columns of every kind that can be wrong, by their layout."""
    found = {}
    for name, layout in LAYOUTS.items():
        words = [None if row % 7 == 3 else "m\u00e9lange 漢字"[: row % 11] for row in range(30)]
        table = pa.table(
            {
                "id": range(30),
                "word": words,
                "amount": decimals(9, *range(0, 300_000, 10_000)),
                "time": pa.array(range(30), pa.int32()).view(pa.time32("ms")),
                "bytes": [bytes([row]) * row for row in range(30)],
                "words": [[word] * (row % 3) for row, word in enumerate(words)],
                "pair": [{"word": word, "flag": row % 2 == 0} for row, word in enumerate(words)],
                "kind": pa.array(["a", "b", "c"] * 10).dictionary_encode(),
            }
        )
        sink = io.BytesIO()
        if name == "delta":
            table = table.select(["id", "word", "amount", "time"])
        pq.write_table(table, sink, row_group_size=10, **layout)
        found[name] = sink.getvalue()
    return found


WHOLE = whole_files()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(LAYOUTS)), st.data())
def test_whatever_is_damaged_the_rows_are_valid_or_the_file_is_told(
    tmp_path_factory: pytest.TempPathFactory, layout: str, data: st.DataObject
) -> None:
    """Bytes that are others, or are gone: nothing invalid comes, no error is another's, and each says which file it is."""
    damaged = bytearray(WHOLE[layout])
    footer = len(damaged) - 8 - int.from_bytes(damaged[-8:-4], "little")
    places = data.draw(st.sampled_from([st.integers(4, footer - 1), st.integers(footer, len(damaged) - 9)]))
    for at in data.draw(st.lists(places, min_size=1, max_size=3)):
        damaged[at] = data.draw(st.one_of(st.just(damaged[at] ^ 128), st.integers(0, 255)))
    kept = data.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))
    path = tmp_path_factory.mktemp("damage") / "damaged.parquet"
    path.write_bytes(damaged[:kept])

    for ask in (
        lambda ds: ds.to_arrow().validate(full=True),
        lambda ds: list(ds.nulls(ps.Mask(), ".*").ragged(ps.AsObjects(), ".*").batch(7)),
        lambda ds: ds.nulls(ps.Mask(), ".*").take([0, ds.num_rows - 1]) if ds.num_rows else None,
        lambda ds: ds.where(ps.col("id") != 3).to_arrow().validate(full=True),
    ):
        try:
            ask(ps.open(path))
        except PenstockError as error:
            assert str(path) in str(error)  # noqa: PT017 - either is right
