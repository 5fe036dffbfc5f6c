"""Deletion vectors: which rows of a file are deleted."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from delta_logs import Lake, column, encoded, inline, metadata, protocol, z85_encoded
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import DataError
from penstock.formats.delta.deletion_vectors import MAGIC, OLD_MAGIC, RUNS, decode_bitmap, decode_z85

ROWS = st.lists(st.integers(0, 300_000) | st.integers(2**32, 2**32 + 70_000) | st.integers(0, 2**62), max_size=300)
NAME = "d2c639aa-8816-431a-aaf6-d3fe2512ff61"


def ids(ds: ps.Dataset) -> list[int]:
    """Return the ids of all rows, sorted."""
    return sorted(ds.to_arrow()["id"].to_pylist())


@given(ROWS, st.integers(0, 200_000), st.integers(0, 5_000))
def test_a_bitmap_gives_back_its_numbers(rows: list[int], start: int, dense: int) -> None:
    """Decoding an encoded bitmap gives back its numbers, whether few or many, also beyond 32 bits."""
    numbers = np.unique(np.array([*rows, *range(start, start + 2 * dense, 2)], dtype=np.int64))

    assert decode_bitmap(encoded(numbers)).tolist() == numbers.tolist()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60)), min_size=1, max_size=200), st.integers(1, 5))
def test_containers_of_runs_are_read(gaps: list[tuple[int, int]], containers: int) -> None:
    """Containers of runs, which store starts and lengths, are decoded, with offsets if there are four or more."""
    starts, at = [], 0
    for gap, length in gaps:
        starts.append((at + gap + 1, length))
        at += gap + length + 1
    runs = np.array([(start, length - 1) for start, length in starts], dtype="<u2")
    body = len(runs).to_bytes(2, "little") + runs.tobytes()
    count = sum(length for _, length in starts)
    data = MAGIC.to_bytes(4, "little") + (1).to_bytes(8, "little") + bytes(4)
    data += (RUNS | (containers - 1) << 16).to_bytes(4, "little") + bytes([255] * ((containers + 7) // 8))
    data += np.array([(key, count - 1) for key in range(containers)], dtype="<u2").tobytes()
    data += bytes(4 * containers if containers >= 4 else 0) + body * containers

    inside = [number for start, length in starts for number in range(start, start + length)]
    assert decode_bitmap(data).tolist() == [(key << 16) + number for key in range(containers) for number in inside]


@given(st.binary(max_size=200), st.data())
def test_arbitrary_bytes_give_numbers_or_a_value_error(noise: bytes, data: st.DataObject) -> None:
    """Arbitrary bytes give a limited count of numbers or raise ValueError."""
    whole = encoded(np.array([3, 70_000, 2**33], dtype=np.int64))
    cut = data.draw(st.integers(0, len(whole)))
    for bad in (noise, MAGIC.to_bytes(4, "little") + noise, whole[:cut] + noise + whole[cut + len(noise) :]):
        with contextlib.suppress(ValueError):
            assert len(decode_bitmap(bad)) <= 1 << 20


def test_the_examples_of_the_protocol_are_read() -> None:
    """The protocol's printed example, in an older layout, gives the same rows as the current layout."""
    old, new = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    little = OLD_MAGIC.to_bytes(4, "little") + (1).to_bytes(4, "little") + (28).to_bytes(4, "little")

    assert decode_bitmap(decode_z85(old)).tolist() == [3, 4, 7, 11, 18, 29]
    assert decode_bitmap(decode_z85(new)).tolist() == [3, 4, 7, 11, 18, 29]
    assert decode_bitmap(little + decode_z85(old)[12:]).tolist() == [3, 4, 7, 11, 18, 29]


@given(st.binary(max_size=40))
def test_base_85_gives_back_its_bytes(data: bytes) -> None:
    """Decoding base 85 gives back the encoded bytes, padded with zeros to whole words."""
    assert decode_z85(z85_encoded(data)) == data + bytes(-len(data) % 4)


@pytest.mark.parametrize("text", ["abcd", "abc\tde", "#####", "####0", "ééééé", "$$$$$"])
def test_invalid_base_85_text_raises(text: str) -> None:
    """Base 85 text of a wrong length, or with invalid letters or words, raises ValueError."""
    with pytest.raises(ValueError, match="is not base 85"):
        decode_z85(text)


def test_vectors_of_all_three_kinds_delete_rows(tmp_path: Path) -> None:
    """Vectors in the log, in a file with a relative path and in a file with an absolute path all delete rows."""
    lake = Lake(tmp_path / "t")
    rows = [pa.table({"id": range(at, at + 10)}) for at in range(0, 50, 10)]
    two = lake.vectors(NAME, [0, 9], [5])
    (one,) = lake.vectors("00000000-0000-0000-0000-000000000001", [1], prefix="ab")
    (away,) = Lake(tmp_path / "other").vectors(NAME, [2, 3, 4])
    away |= {"storageType": "p", "pathOrInlineDv": f"file://{tmp_path}/other/deletion_vector_{NAME}.bin"}
    vectors = [inline([7]), *two, one, away]
    adds = [
        lake.add(f"{at}.parquet", part, deletionVector=vector)
        for at, (part, vector) in enumerate(zip(rows, vectors, strict=True))
    ]
    lake.commit(0, protocol("deletionVectors"), metadata([column("id", "long")]), *adds)
    gone = {7, 10, 19, 25, 31, 42, 43, 44}
    ds = ps.open(lake.path)

    assert ids(ds) == [number for number in range(50) if number not in gone]
    assert ds.num_rows == 42
    assert ds.where(ps.col("id") >= 40).num_rows == 7
    assert sorted(int(row["id"]) for row in ds.shuffle(seed=1)) == ids(ds)
    assert sorted(pa.table(DeltaTable(lake.path).scan())["id"].to_pylist()) == ids(ds)


def test_deleted_rows_are_numbered_by_file_and_not_by_row_group(tmp_path: Path) -> None:
    """Deleted rows are numbered within the file, so each row group leaves out its own part of them."""
    lake = Lake(tmp_path / "t")
    gone = [*range(0, 3000, 7), 2999]
    file, groups = pa.table({"id": range(3000)}), {"row_group_size": 1000}
    add = lake.add("0.parquet", file, deletionVector=inline(gone), stats=None, parquet=groups)
    lake.commit(0, protocol("deletionVectors"), metadata([column("id", "long")]), add)
    ds = ps.open(lake.path)

    assert ids(ds) == sorted(set(range(3000)) - set(gone))
    assert ds.take([0, 857])["id"].tolist() == [1, 1000]


def test_a_file_whose_rows_are_all_deleted_yields_none(tmp_path: Path) -> None:
    """A file whose rows are all deleted yields no rows."""
    lake = Lake(tmp_path / "t")
    adds = [
        lake.add("0.parquet", pa.table({"id": range(3)}), deletionVector=inline([0, 1, 2])),
        lake.add("1.parquet", pa.table({"id": [9]})),
    ]
    lake.commit(0, protocol("deletionVectors"), metadata([column("id", "long")]), *adds)

    assert [int(row["id"]) for row in ps.open(lake.path).shuffle(seed=3)] == [9]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"cardinality": 3}, "deletes 2 rows, and the log says 3"),
        ({"sizeInBytes": 12}, "the deletion vector at byte 1 is damaged: its size or its checksum differ"),
        ({"offset": 2}, "the deletion vector at byte 2 is damaged"),
        ({"storageType": "x"}, "has a deletion vector stored as 'x'"),
        ({"pathOrInlineDv": "short"}, "has a deletion vector stored as 'u' at 'short'"),
        ({"storageType": "i", "pathOrInlineDv": "no"}, "in its log that is not base 85"),
        ({"storageType": "i", "pathOrInlineDv": "HelloWorld"}, "a deletion vector cannot be read: it begins with"),
        ({"storageType": "p", "pathOrInlineDv": "s3://elsewhere/v.bin"}, "on another storage system than its log"),
    ],
)
def test_a_vector_that_does_not_match_the_log_is_refused(tmp_path: Path, change: dict[str, object], complaint: str) -> None:
    """A vector that does not match the log raises DataError, so that deleted rows never come back."""
    lake = Lake(tmp_path / "t")
    (vector,) = lake.vectors(NAME, [0, 9])
    add = lake.add("0.parquet", pa.table({"id": range(10)}), deletionVector=vector | change)
    lake.commit(0, protocol("deletionVectors"), metadata([column("id", "long")]), add)

    with pytest.raises(DataError, match=complaint):
        ps.open(lake.path)


def test_a_flipped_bit_in_a_file_of_vectors_is_found(tmp_path: Path) -> None:
    """A flipped bit in a file of vectors raises DataError, because each vector has a checksum."""
    lake = Lake(tmp_path / "t")
    (vector,) = lake.vectors(NAME, [0, 9])
    file = lake.path / f"deletion_vector_{NAME}.bin"
    data = bytearray(file.read_bytes())
    data[-6] ^= 1
    file.write_bytes(data)
    add = lake.add("0.parquet", pa.table({"id": range(10)}), deletionVector=vector)
    lake.commit(0, protocol("deletionVectors"), metadata([column("id", "long")]), add)

    with pytest.raises(DataError, match="is damaged: its size or its checksum differ"):
        ps.open(lake.path)


def test_a_missing_file_of_vectors_is_reported(tmp_path: Path) -> None:
    """A missing file of vectors raises DataError, which names the file, the version and the remedy."""
    lake = Lake(tmp_path / "t")
    (vector,) = lake.vectors(NAME, [0, 9])
    add = lake.add("0.parquet", pa.table({"id": range(10)}), deletionVector=vector)
    lake.commit(0, protocol("deletionVectors"), metadata([column("id", "long")]), add)
    (lake.path / f"deletion_vector_{NAME}.bin").unlink()

    with pytest.raises(
        DataError, match=rf"deletion_vector_{NAME}\.bin: the file is gone.*version 0.*VACUUM.*Open a newer version"
    ):
        ps.open(lake.path)


def test_a_vector_belongs_to_its_own_add(tmp_path: Path) -> None:
    """A remove action removes only the entry of a file with the same vector, and not the entry with a newer one."""
    lake = Lake(tmp_path / "t")
    rows = pa.table({"id": range(10)})
    before, after = lake.add("0.parquet", rows), lake.add("0.parquet", rows, deletionVector=inline([1]))
    again = lake.add("0.parquet", rows, deletionVector=inline([1, 2]))
    lake.commit(0, protocol("deletionVectors"), metadata([column("id", "long")]), before)
    lake.commit(1, {"remove": {"path": "0.parquet", "dataChange": True}}, after)
    lake.commit(2, again, {"remove": {"path": "0.parquet", "deletionVector": after["add"]["deletionVector"]}})

    assert [ps.open(lake.path, version=at).num_rows for at in range(3)] == [10, 9, 8]
