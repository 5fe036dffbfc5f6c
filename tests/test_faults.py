"""Files that are damaged, deleted, unreadable or replaced while they are read: the error names the place, at every call."""

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
"""The files of a table, the row groups of a file, and the rows of a row group."""

FILE_ROWS = GROUPS * ROWS
CHANGED = "the file was changed after the table was opened: its size or the time of its last write differ. Open the table again"


def columns(first: int, count: int) -> pa.Table:
    """Return rows with columns of several types."""
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
        pq.write_table(
            columns(file * FILE_ROWS, FILE_ROWS), path, row_group_size=ROWS, write_page_checksum=True, use_dictionary=["word"]
        )
    return place


def threads() -> list[str]:
    """Return the names of the running threads of Penstock."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]


def read_to_error(batches: Iterator[Any]) -> tuple[int, str]:
    """Return the number of batches before the error, and its message; check that it repeats and leaves no thread."""
    found: list[Any] = []
    with pytest.raises(DataError) as caught:
        found.extend(batches)
    with pytest.raises(type(caught.value)) as repeated:
        next(batches)
    assert repeated.value is caught.value
    assert threads() == []
    return len(found), str(caught.value)


def started(ds: ps.Dataset) -> Iterator[Any]:
    """Return an iterator after its first batch; with one thread, it reads only little ahead."""
    batches = iter(ds.using(threads=1))
    next(batches)
    return batches


# ------------------------------------------------------------------------------------------------------ before planning


@pytest.mark.parametrize("use", [lambda ds: list(ds.batch(ROWS)), lambda ds: ds.num_rows, lambda ds: ds[0]])
def test_a_file_deleted_before_planning_raises(table: Path, use: Callable[[ps.Dataset], Any]) -> None:
    """A file deleted after the table was opened raises an error that names it, also on the first use of the table."""
    ds = ps.open(table)
    (table / "2.parquet").unlink()
    with pytest.raises(DataChangedError) as raised:
        use(ds)

    assert str(raised.value) == (
        f"{table}/2.parquet: the file is gone. It was there when the table was opened. Open the table again."
    )


@pytest.mark.parametrize("size", [0, 3, 500])
def test_a_file_truncated_before_planning_raises(table: Path, size: int) -> None:
    """A file truncated after the table was opened is reported as changed, not as damaged."""
    ds = ps.open(table)
    os.truncate(table / "2.parquet", size)
    with pytest.raises(DataChangedError) as raised:
        list(ds.batch(ROWS))

    assert str(raised.value) == f"{table}/2.parquet: {CHANGED}; a state saved before cannot be resumed."


def test_a_file_replaced_before_planning_raises(table: Path) -> None:
    """A replaced file is reported as changed: one that is readable, and one of the same size that is not."""
    for path, content in (("1.parquet", (table / "0.parquet").read_bytes()[:-4] + b"more"), ("2.parquet", None)):
        ds, file = ps.open(table), table / path
        before = file.stat()
        if content is None:
            pq.write_table(columns(0, 2 * FILE_ROWS), file)
        else:
            file.write_bytes((content * 2)[: before.st_size])
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
        with pytest.raises(DataChangedError) as raised:
            _ = ds.num_rows

        assert str(raised.value) == f"{file}: {CHANGED}; a state saved before cannot be resumed."
        pq.write_table(columns(FILE_ROWS, FILE_ROWS), file)


# ---------------------------------------------------------------------------------------------------------- in mid-epoch


@pytest.mark.parametrize("size", [0, 3, 500])
def test_a_file_truncated_in_mid_epoch_raises(table: Path, size: int) -> None:
    """The error for a truncated file names the file, the row group and what to do, whether or not it is open already."""
    batches = started(ps.open(table).batch(ROWS))
    os.truncate(table / "0.parquet", size)
    count, text = read_to_error(batches)

    assert count < GROUPS
    assert text.startswith(f"{table}/0.parquet, row group {count + 1}: {CHANGED}")

    rest = started(ps.open([table / "1.parquet", table / "2.parquet"]).batch(ROWS))
    os.truncate(table / "2.parquet", size)
    assert read_to_error(rest) == (
        GROUPS - 1,
        f"{table}/2.parquet, row group 0: {CHANGED}; a state saved before cannot be resumed.",
    )


def test_a_file_deleted_in_mid_epoch_raises(table: Path) -> None:
    """A deleted file is read to its end if it is open already, and raises an error otherwise."""
    batches = started(ps.open(table).batch(ROWS))
    (table / "0.parquet").unlink()
    (table / "2.parquet").unlink()

    assert read_to_error(batches) == (
        2 * GROUPS - 1,
        f"{table}/2.parquet, row group 0: the file is gone. It was there when the table was opened. Open the table again.",
    )


def test_a_file_replaced_in_mid_epoch_raises(table: Path) -> None:
    """A replaced file yields its old rows if it is open already, and raises an error otherwise; its new rows never come."""
    ds = ps.open(table).batch(ROWS)
    batches = started(ds)
    for file in (0, 1):
        pq.write_table(columns(1000, FILE_ROWS), table / "new", row_group_size=ROWS)
        (table / "new").rename(table / f"{file}.parquet")

    found = [batch["id"].tolist() for _, batch in zip(range(GROUPS - 1), batches, strict=False)]
    assert sum(found, []) == list(range(ROWS, FILE_ROWS))
    assert read_to_error(batches)[1].startswith(f"{table}/1.parquet, row group 0: {CHANGED}")
    with pytest.raises(DataChangedError, match=r"0\.parquet, row group 0: the file was changed after"):
        next(iter(ds))


def test_a_file_overwritten_in_mid_epoch_raises(table: Path) -> None:
    """An open file that is overwritten with as many bytes raises an error, and its new rows never come."""
    before = (table / "0.parquet").stat()
    batches = started(ps.open(table).batch(ROWS))
    pq.write_table(columns(0, FILE_ROWS), table / "new", row_group_size=ROWS)
    content = bytearray((table / "new").read_bytes())
    with (table / "0.parquet").open("r+b") as file:
        file.write(content)
    os.utime(table / "0.parquet", ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))

    count, text = read_to_error(batches)
    assert count < GROUPS
    assert text.startswith(f"{table}/0.parquet, row group {count + 1}: {CHANGED}")


def test_cells_of_an_overwritten_file_raise(tmp_path: Path) -> None:
    """Large cells are read when their batch is made; if their file was overwritten meanwhile, they raise an error."""
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


def test_a_directory_in_place_of_a_file_raises(table: Path) -> None:
    """A directory in place of a file raises an error, whatever the permissions of the user."""
    batches = started(ps.open(table).batch(ROWS))
    (table / "1.parquet").unlink()
    (table / "1.parquet").mkdir()

    count, text = read_to_error(batches)
    assert count == GROUPS - 1
    assert text.startswith(f"{table}/1.parquet, row group 0: cannot be read: ")
    assert text.endswith(". The table says it has 10 rows. Check the file.")


def test_a_file_without_read_permission_raises(tmp_path: Path) -> None:
    """A file or directory without read permission raises an error that says so."""
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


class FailingFileSystem(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
    """A file system whose reads fail with its own message after a number of reads."""

    def __init__(self, most: int) -> None:
        """Store the number of reads that succeed."""
        super().__init__(fsspec.filesystem("file"))
        self.left = most

    def open_input_file(self, path: str) -> Any:
        """Return a file whose reads fail once that number is used up."""
        outer, file = self, self.fs.open(path, "rb")

        class FailingFile:
            closed = False

            def read(self, size: int = -1) -> bytes:
                outer.left -= 1
                if outer.left < 0:
                    raise OSError(errno.EIO, "The disk is broken")
                return bytes(file.read(size))

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

        return pa.PythonFile(FailingFile(), mode="r")


def test_storage_that_fails_raises(table: Path) -> None:
    """Storage that fails at any read raises an error with the file and the message of the storage."""

    def read(handler: FailingFileSystem) -> None:
        list(ps.open(str(table), filesystem=pafs.PyFileSystem(handler)).batch(ROWS).using(threads=1))

    healthy = FailingFileSystem(1 << 60)
    read(healthy)
    seen = set()
    for most in range((1 << 60) - healthy.left):
        with pytest.raises(DataError) as caught:
            read(FailingFileSystem(most))
        text = str(caught.value)
        seen.add(text.partition("cannot be read")[0].rpartition("/")[2])
        assert text.startswith(f"{table}/")
        assert "The disk is broken" in f"{text} {caught.value.__cause__}"
        assert threads() == []

    assert any("row group" in place for place in seen), seen


# ------------------------------------------------------------------------------------------------------------- bit flips


def pages(path: Path) -> list[tuple[int, str, int, int, int]]:
    """Return the row group, column, kind, first byte and end of every page of a file."""
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


def flip_bit(path: Path, at: int, bit: int) -> None:
    """Flip one bit of a file, and keep its size and times."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_flipped_bit_is_found_in_every_kind_of_page(tmp_path: Path, version: str, compression: str) -> None:
    """With checksums, a flipped bit in any page raises an error with file, row group and column, before a wrong batch."""
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
        flip_bit(path, at, bit)
        ds = ps.open(path).batch(15)
        count, text = read_to_error(iter(ds.using(checksums=True)))
        flip_bit(path, at, bit)

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
    """Return a table of Raw cells: small ones, which are copied, and large ones, which stay in the file until their batch."""
    place = tmp_path_factory.mktemp("blobs") / "t"
    random = np.random.default_rng(0)
    rows = 12
    cells = {"small": random.integers(0, 256, (rows, 50), np.uint8), "large": random.integers(0, 256, (rows, 40_000), np.uint8)}
    ps.write(place, BLOBS, {"id": np.arange(rows), **cells}, row_group_rows=4)
    return place


@settings(max_examples=25)
@given(st.data())
def test_a_flipped_bit_in_raw_cells_is_found(blobs: Path, data: st.DataObject) -> None:
    """With checksums, batches, rows by number and `to_arrow` raise an error for a flipped bit in Raw cells."""
    (path,) = blobs.glob("*.parquet")
    group, name, _, begin, end = data.draw(st.sampled_from([page for page in pages(path) if page[1] != "id"]))
    at, bit = data.draw(st.integers(begin, end - 1)), data.draw(st.integers(0, 7))
    ds = ps.open(blobs).using(checksums=True)
    flip_bit(path, at, bit)
    try:
        texts = [read_to_error(iter(ds.batch(4)))[1], read_to_error(iter(ds.batch(5).shuffle().batch(3)))[1]]
        for rows in ([4 * group], range(12)):
            with pytest.raises(DataError) as caught:
                ds.take(rows)
            texts.append(str(caught.value))
        with pytest.raises(DataError) as caught:
            ds.to_arrow()
        texts.append(str(caught.value))
    finally:
        flip_bit(path, at, bit)

    assert all(f"row group {group}, column {name!r}: a page does not match its checksum" in text for text in texts), texts
    assert len(list(ds.batch(4))) == 3


def test_checksums_do_not_change_the_rows(table: Path, blobs: Path) -> None:
    """The rows are the same with and without checksums; files without page checksums can be read too."""
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
def test_cells_of_a_truncated_file_raise(tmp_path: Path, column: str) -> None:
    """Cells of a truncated file raise an error that names it, also those that are read when their batch is made."""
    random, rows = np.random.default_rng(0), 80
    cells = {"small": random.integers(0, 256, (rows, 50), np.uint8), "large": random.integers(0, 256, (rows, 40_000), np.uint8)}
    ps.write(tmp_path / "t", BLOBS, {"id": np.arange(rows), **cells}, row_group_rows=4)
    (path,) = (tmp_path / "t").glob("*.parquet")
    last = [page for page in pages(path) if page[1] == column][-1]
    batches = started(ps.open(tmp_path / "t").select("id", column).batch(2))
    os.truncate(path, last[3] + 20)

    _, text = read_to_error(batches)
    assert text.startswith(str(path))
    assert CHANGED in text or "the file ends after" in text
    assert "Open the table again" in text or "open the table again" in text


@pytest.mark.parametrize("length", [0, 3, 24, 2000])
def test_a_file_that_is_not_parquet_raises_when_it_is_opened(table: Path, length: int) -> None:
    """Opening a file that is not a Parquet file raises an error before anything is read of it."""
    path = table / "a.parquet"
    path.write_bytes((table / "0.parquet").read_bytes()[:length])

    with pytest.raises(DataError, match=rf"/a\.parquet: not a Parquet file: it has {length} bytes and .* Write the file again"):
        ps.open(path)


# ---------------------------------------------------------------------------------------------------------- invalid values

DAMAGED = b"\xffz"
"""Bytes that are not UTF-8."""


def decimals(precision: int, *numbers: int) -> pa.Array:
    """Return decimals without checking that they fit the precision."""
    data = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    return pa.Array.from_buffers(pa.decimal128(precision, 2), len(numbers), [None, pa.py_buffer(data)])


def texts(*cells: bytes | None) -> pa.Array:
    """Return text without checking that it is UTF-8."""
    return pa.array(cells, pa.binary()).view(pa.string())


TEXT = texts(b"a", None, b"\xc3\xa9", DAMAGED)
INVALID = {
    "text": TEXT,
    "decimal": decimals(4, 1, 2, -9999, 10000),
    "time": pa.array([1, 2, None, 86_400_000], pa.int32()).view(pa.time32("ms")),
    "list": pa.ListArray.from_arrays(pa.array([0, 1, 3, 3, 4], pa.int32()), TEXT),
    "struct": pa.StructArray.from_arrays([pa.array(range(4)), decimals(4, 1, 2, 3, 10000)], names=["n", "d"]),
    "map": pa.MapArray.from_arrays(pa.array([0, 0, 1, 2, 3], pa.int32()), pa.array([1, 2, 3]), texts(b"a", b"b", DAMAGED)),
}
"""Columns of four rows. The last row is invalid."""

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


@pytest.fixture(params=INVALID)
def invalid_file(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """Return a file of two row groups whose last cell is invalid, and the name of its column."""
    name: str = request.param
    good = INVALID[name].slice(0, 3)
    table = pa.concat_tables([pa.table({name: good}), pa.table({name: INVALID[name]})])
    path = tmp_path / "wrong.parquet"
    pq.write_table(table.add_column(0, "id", [range(7)]).combine_chunks(), path, row_group_size=5)
    return path, name


@pytest.mark.parametrize("use", [
    ps.Dataset.to_arrow,
    ps.Dataset.to_pandas,
    lambda ds: ds.where(ps.col("id") > 2).to_arrow(),
    lambda ds: ds.select(".*").take([6]),
    lambda ds: ds[-1],
    lambda ds: list(ds.nulls(ps.Mask(), ".*").ragged(ps.AsObjects(), ".*").batch(2)),
])  # fmt: skip
def test_an_invalid_value_raises(invalid_file: tuple[Path, str], use: Callable[[ps.Dataset], Any]) -> None:
    """Invalid text, decimals and times raise an error with the file, row group, row and column."""
    path, name = invalid_file
    with pytest.raises(DataError) as raised:
        use(ps.open(path))

    assert str(raised.value) == f"{path}, row group 1, row 6, column {name!r}: {PROBLEMS[name]}"


def test_rows_before_an_invalid_value_can_be_read(invalid_file: tuple[Path, str]) -> None:
    """Rows before an invalid value can be read, since only values that are returned are checked."""
    path, _ = invalid_file
    stored = pq.read_table(path)

    assert ps.open(path).limit(6).to_arrow() == stored.slice(0, 6)
    assert ps.open(path).where(ps.col("id") != 6).to_arrow() == stored.slice(0, 6)
    assert ps.open(path).select("id").to_arrow().num_rows == 7


def test_an_invalid_value_makes_a_bad_row(invalid_file: tuple[Path, str]) -> None:
    """A row with an invalid value can be skipped, like a row whose cell cannot be decoded."""
    path, name = invalid_file
    ds = ps.open(path).nulls(ps.Mask(), ".*").ragged(ps.AsObjects(), ".*").batch(7)
    loader = ps.loader(ds.on_bad_row("skip", most=1))
    (batch,) = loader
    (row,) = loader.skipped

    assert batch["id"].tolist() == [0, 1, 2, 3, 4, 5]
    assert (row.row_group, row.row, row.column, row.problem) == (1, 6, name, PROBLEMS[name])


def test_text_that_is_not_utf_8_can_be_read_as_bytes(tmp_path: Path) -> None:
    """A schema with binary columns reads text that is not UTF-8 as bytes, in flat columns and in lists."""
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


@pytest.mark.parametrize("use", [
    ps.Dataset.to_arrow,
    lambda ds: list(ds.batch(4)),
    lambda ds: ds.where(ps.col("word") != "word 3").to_arrow(),
    lambda ds: ds[FILE_ROWS],
    lambda ds: ds.take([0, FILE_ROWS, FILE_ROWS + 30]),
])  # fmt: skip
def test_column_names_that_are_not_utf_8_raise(table: Path, use: Callable[[ps.Dataset], Any]) -> None:
    """A column name that is not UTF-8 raises an error, also in a file that was not read when the table was opened."""
    path = table / "1.parquet"
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[: -8 - size] + data[-8 - size :].replace(b"flag", b"fl\xffg", 1))
    with pytest.raises(DataError) as raised:
        use(ps.open(table))

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


def valid_files() -> dict[str, bytes]:
    """Return a valid file for each layout: thirty rows in three row groups, with all types that can have invalid values."""
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


VALID = valid_files()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(LAYOUTS)), st.data())
def test_a_damaged_file_yields_valid_rows_or_raises(
    tmp_path_factory: pytest.TempPathFactory, layout: str, data: st.DataObject
) -> None:
    """Reading a file with changed or missing bytes yields valid rows, or raises a PenstockError that names the file."""
    damaged = bytearray(VALID[layout])
    footer = len(damaged) - 8 - int.from_bytes(damaged[-8:-4], "little")
    places = data.draw(st.sampled_from([st.integers(4, footer - 1), st.integers(footer, len(damaged) - 9)]))
    for at in data.draw(st.lists(places, min_size=1, max_size=3)):
        damaged[at] = data.draw(st.one_of(st.just(damaged[at] ^ 128), st.integers(0, 255)))
    length = data.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))
    path = tmp_path_factory.mktemp("damage") / "damaged.parquet"
    path.write_bytes(damaged[:length])

    for use in (
        lambda ds: ds.to_arrow().validate(full=True),
        lambda ds: list(ds.nulls(ps.Mask(), ".*").ragged(ps.AsObjects(), ".*").batch(7)),
        lambda ds: ds.nulls(ps.Mask(), ".*").take([0, ds.num_rows - 1]) if ds.num_rows else None,
        lambda ds: ds.where(ps.col("id") != 3).to_arrow().validate(full=True),
    ):
        try:
            use(ps.open(path))
        except PenstockError as error:
            assert str(path) in str(error)  # noqa: PT017 - valid rows and an error are both right
