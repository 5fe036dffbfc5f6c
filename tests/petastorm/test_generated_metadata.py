"""`petastorm.etl.petastorm_generate_metadata` and `metadata_util`: generate and print the metadata of a dataset."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import petastorm_tables as tables
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.formats.petastorm import INDEX_KEY, ROW_GROUPS_KEY, UNISCHEMA_KEY
from penstock.petastorm import make_reader
from penstock.petastorm._impl.dataset import open_dataset
from penstock.petastorm._impl.metadata_keys import stored_schema
from penstock.petastorm._impl.spark_types import StoredSparkType
from penstock.petastorm.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from penstock.petastorm.etl import metadata_util
from penstock.petastorm.etl.dataset_metadata import (
    PetastormMetadataError,
    PetastormMetadataGenerationError,
    get_schema_from_dataset_url,
    load_row_groups,
)
from penstock.petastorm.etl.petastorm_generate_metadata import _main, generate_petastorm_metadata
from penstock.petastorm.etl.rowgroup_indexers import SingleFieldIndexer
from penstock.petastorm.etl.rowgroup_indexing import build_rowgroup_index
from penstock.petastorm.unischema import Unischema, UnischemaField

HELLO = Unischema(
    "Hello",
    [
        UnischemaField("id", np.int64, (), ScalarCodec(StoredSparkType("LongType", {}))),
        UnischemaField("vector", np.float32, (3,), NdarrayCodec(), nullable=True),
    ],
)
NO_SCHEMA = {"not": "a schema"}


@pytest.fixture
def schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a user's module that has the schemas of this file."""
    name = f"our_schemas_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(f"from {__name__} import HELLO, NO_SCHEMA\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    return name


def parquet(place: Path, files: int = 2, rows: int = 6) -> str:
    """Write plain files whose cells are encoded as by Petastorm, and return their URL."""
    place.mkdir()
    for file in range(files):
        numbers = range(file * rows, file * rows + rows)
        cells = [bytes(NdarrayCodec().encode(HELLO.vector, np.full(3, number, np.float32))) for number in numbers]
        pq.write_table(pa.table({"id": list(numbers), "vector": cells}), place / f"part-{file}.parquet", row_group_size=2)
    return place.as_uri()


def ids(url: str) -> list[int]:
    """Return the ids of a dataset in order."""
    with make_reader(url, shuffle_row_groups=False, workers_count=1) as reader:
        return tables.ids(reader)


def test_plain_files_become_a_dataset(tmp_path: Path, schemas: str) -> None:
    """The metadata has the schema that the user names, and the number of row groups of each file."""
    url = parquet(tmp_path / "t")

    generate_petastorm_metadata(None, url, f"{schemas}.HELLO")

    with make_reader(url, shuffle_row_groups=False, workers_count=1) as reader:
        found = [(int(row.id), row.vector.tolist()) for row in reader]
    assert found == [(number, [number] * 3) for number in range(12)]
    assert json.loads(open_dataset(url).keys[ROW_GROUPS_KEY]) == {"part-0.parquet": 3, "part-1.parquet": 3}
    assert str(get_schema_from_dataset_url(url)) == str(HELLO)


def test_metadata_can_be_generated_again(tmp_path: Path) -> None:
    """Generating metadata again counts the row groups and keeps the schema and the indexes."""
    url = tables.small(tmp_path / "t")
    build_rowgroup_index(url, None, [SingleFieldIndexer("by id", "id")])
    before = open_dataset(url).keys
    (name,) = json.loads(before[ROW_GROUPS_KEY])
    pq.write_table(pq.read_table(tmp_path / "t" / name), tmp_path / "t" / name, row_group_size=5)

    generate_petastorm_metadata(None, url)

    after = open_dataset(url).keys
    assert json.loads(after[ROW_GROUPS_KEY]) == {name: 8}
    assert {key: after[key] for key in (UNISCHEMA_KEY, INDEX_KEY)} == {key: before[key] for key in (UNISCHEMA_KEY, INDEX_KEY)}
    assert ids(url) == list(range(40))


def test_stored_file_names_include_partition_directories(tmp_path: Path) -> None:
    """Stored file names include their partition directories, as in Petastorm."""
    url = tables.partitioned(tmp_path / "t")

    generate_petastorm_metadata(None, url)

    stored = json.loads(open_dataset(url).keys[ROW_GROUPS_KEY])
    assert sorted(Path(name).parent.name for name in stored) == ["part=p_0", "part=p_1", "part=p_2", "part=p_3"]
    assert sorted(ids(url)) == list(range(40))


def test_a_generated_schema_replaces_the_schema_of_penstock(tmp_path: Path, schemas: str) -> None:
    """The schema that the user names replaces the stored one, also for `penstock.open`."""
    schema = ps.Schema("Before", [ps.Field("id", np.int64), ps.Field("vector", bytes)])
    cells = [bytes(NdarrayCodec().encode(HELLO.vector, np.full(3, number, np.float32))) for number in range(2)]
    ps.write(tmp_path / "t", schema, {"id": [0, 1], "vector": cells}, format="petastorm")

    generate_petastorm_metadata(None, (tmp_path / "t").as_uri(), f"{schemas}.HELLO")

    assert ps.open(tmp_path / "t")[1]["vector"].tolist() == [1.0, 1.0, 1.0]


def test_a_summary_lists_row_groups(tmp_path: Path, schemas: str) -> None:
    """`use_summary_metadata` writes `_metadata` with the row groups, and no row group counts to `_common_metadata`."""
    url = parquet(tmp_path / "t")

    generate_petastorm_metadata(None, url, f"{schemas}.HELLO", use_summary_metadata=True)

    footer = pq.read_metadata(tmp_path / "t" / "_metadata")
    assert (footer.num_row_groups, footer.num_rows) == (6, 12)
    assert footer.row_group(5).column(0).file_path == "part-1.parquet"
    assert ROW_GROUPS_KEY not in open_dataset(url).keys
    assert len(load_row_groups(open_dataset(url))) == 6
    assert ids(url) == list(range(12))


def test_checksums_of_replaced_files_are_deleted(tmp_path: Path, schemas: str) -> None:
    """Hadoop checksums of replaced files are deleted, since Hadoop would reject the new files by them."""
    url = parquet(tmp_path / "t")
    for name in ("_metadata", "_common_metadata"):
        (tmp_path / "t" / f".{name}.crc").write_bytes(b"crc\0")

    generate_petastorm_metadata(None, url, f"{schemas}.HELLO", use_summary_metadata=True)

    assert sorted(path.name for path in (tmp_path / "t").glob(".*")) == []


def test_a_summary_of_files_with_different_columns_raises(tmp_path: Path, schemas: str) -> None:
    """A summary of files with different columns raises an error with advice, and writes no metadata."""
    url = parquet(tmp_path / "t")
    pq.write_table(pa.table({"id": [1], "other": [2]}), tmp_path / "t" / "part-2.parquet")

    with pytest.raises(PetastormMetadataGenerationError, match=r"have different columns.*Leave use_summary_metadata out\.$"):
        generate_petastorm_metadata(None, url, f"{schemas}.HELLO", use_summary_metadata=True)
    assert not (tmp_path / "t" / "_common_metadata").exists()


def test_generating_without_a_schema_raises(tmp_path: Path, schemas: str) -> None:
    """A name that is no Unischema raises ValueError. A missing schema raises an error that is also Petastorm's."""
    url = parquet(tmp_path / "t")

    with pytest.raises(ValueError, match=r"NO_SCHEMA is not an instance of a petastorm.Unischema object. It is {'not'"):
        generate_petastorm_metadata(None, url, f"{schemas}.NO_SCHEMA")
    with pytest.raises(ValueError, match=r"nowhere is not an instance of a petastorm\.Unischema object\. It is None"):
        generate_petastorm_metadata(None, url, f"{schemas}.nowhere")
    for kind in (ValueError, PetastormMetadataError):
        with pytest.raises(kind, match="Unischema class could not be located in existing dataset, please specify it"):
            generate_petastorm_metadata(None, url)


def test_schemas_are_stored_with_the_arguments_of_their_codecs() -> None:
    """A stored schema has the arguments of each codec."""
    pytest.importorskip("cv2")
    decimal = ScalarCodec(StoredSparkType("DecimalType", {"precision": 10, "scale": 9, "hasPrecisionInfo": True}))
    image = CompressedImageCodec("jpeg", 70)
    schema = Unischema("All", [UnischemaField("d", np.object_, (), decimal), UnischemaField("i", np.uint8, (2, 2, 3), image)])

    first, second = stored_schema(schema).fields

    assert first.codec is not None
    assert second.codec is not None
    assert (
        first.codec.spark_type == StoredSparkType("DecimalType", {"precision": 10, "scale": 9, "hasPrecisionInfo": True}).stored
    )
    assert dict(second.codec.options) == {"image_codec": ".jpeg", "quality": 70}


def test_the_command_accepts_the_arguments_of_petastorm(
    tmp_path: Path, schemas: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command accepts Petastorm's arguments, and warns about Spark options that are not the default."""
    url = parquet(tmp_path / "t")

    _main(["--dataset_url", url, "--unischema_class", f"{schemas}.HELLO", "--spark-driver-memory", "4g"])
    with pytest.warns(UserWarning, match=r"^--master and --spark-driver-memory set up Spark"):
        _main(["--dataset_url", url, "--master", "local[1]", "--spark-driver-memory", "8g", "--use-summary-metadata"])
    with pytest.raises(SystemExit):
        _main(["--unischema_class", "x"])

    assert ids(url) == list(range(12))
    assert "usage: petastorm_generate_metadata" in capsys.readouterr().err


def test_metadata_util_prints_the_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`metadata_util` prints the schema and the indexes, and leaves out the values of some indexes on request."""
    url = tables.small(tmp_path / "t", rows=4, group=2)
    build_rowgroup_index(url, None, [SingleFieldIndexer("by id", "id"), SingleFieldIndexer("by name", "name")])

    metadata_util.main(["--dataset-url", f"{url}/", "--index", "--print-values", "--skip-index", "by name"])
    index = capsys.readouterr().out
    metadata_util.main(["--dataset-url", url, "--schema"])
    schema = capsys.readouterr().out

    assert index.splitlines() == [
        "*** Row group indexes from dataset metadata ***",
        "Index: by id",
        *[line for number in range(4) for line in (f"  -- {number}(1)", f"{{{number // 2}}}")],
        "Index: by name",
        "  (skipped)",
    ]
    assert schema == f"*** Schema from dataset metadata ***\n{get_schema_from_dataset_url(url)}\n"


READING = """
print(sorted((int(row.id), row.vector.tolist()) for row in every(sys.argv[1])))
"""


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("summary", [False, True])
def test_petastorm_itself_reads_generated_metadata(
    tmp_path: Path, schemas: str, ask_petastorm: Callable[..., list[str]], *, summary: bool
) -> None:
    """Petastorm 0.13.1 reads plain files with generated metadata as a dataset."""
    url = parquet(tmp_path / "t")
    generate_petastorm_metadata(None, url, f"{schemas}.HELLO", use_summary_metadata=summary)

    assert str([(number, [float(number)] * 3) for number in range(12)]) in ask_petastorm(READING, url)
