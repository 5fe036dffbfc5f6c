"""Each name in Petastorm's modules exists under the drop-in, at the same path."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = {
    "petastorm": "NoDataAvailableError TransformSpec make_batch_reader make_reader",
    "petastorm.arrow_reader_worker": (
        "ArrowReaderWorker ArrowReaderWorkerResultsQueueReader EmptyResultError LocalDiskCache NullCache WorkerBase "
        "convert_arrow_table_to_numpy_dict"
    ),
    "petastorm.benchmark": "",
    "petastorm.benchmark.cli": "ReadMethod WorkerPoolType main reader_throughput",
    "petastorm.benchmark.dummy_reader": "BatchedDataLoader DataLoader DummyReader main",
    "petastorm.benchmark.throughput": (
        "BenchmarkResult DummyPool PickleSerializer ProcessPool ReadMethod ThreadPool WorkerPoolType "
        "get_schema_from_dataset_url make_reader match_unischema_fields reader_throughput tf_tensors"
    ),
    "petastorm.cache": "CacheBase NullCache",
    "petastorm.codecs": (
        "CompressedImageCodec CompressedNdarrayCodec DataframeColumnCodec NdarrayCodec OPENCV_AVAILABLE ScalarCodec"
    ),
    "petastorm.errors": "NoDataAvailableError",
    "petastorm.etl": "RowGroupIndexerBase",
    "petastorm.etl.dataset_metadata": (
        "FilesystemResolver PetastormMetadataError PetastormMetadataGenerationError ROW_GROUPS_PER_FILE_KEY "
        "UNISCHEMA_KEY Unischema depickle_legacy_package_name_compatible get_dataset_path "
        "get_filesystem_and_path_or_paths get_schema get_schema_from_dataset_url infer_or_load_unischema "
        "load_row_groups materialize_dataset utils"
    ),
    "petastorm.etl.legacy": "RestrictedUnpickler depickle_legacy_package_name_compatible restricted_loads safe_modules",
    "petastorm.etl.metadata_util": "FilesystemResolver dataset_metadata rowgroup_indexing",
    "petastorm.etl.petastorm_generate_metadata": (
        "FilesystemResolver ROWGROUPS_INDEX_KEY ROW_GROUPS_PER_FILE_KEY Unischema add_to_dataset_metadata "
        "example_text generate_petastorm_metadata get_schema main materialize_dataset"
    ),
    "petastorm.etl.rowgroup_indexers": "FieldNotNullIndexer RowGroupIndexerBase SingleFieldIndexer",
    "petastorm.etl.rowgroup_indexing": (
        "FilesystemResolver PieceInfo ROWGROUPS_INDEX_KEY build_rowgroup_index dataset_metadata "
        "depickle_legacy_package_name_compatible get_row_group_indexes utils"
    ),
    "petastorm.fs_utils": (
        "FilesystemResolver HdfsConnector HdfsNamenodeResolver get_dataset_path get_filesystem_and_path_or_paths "
        "normalize_dir_url"
    ),
    "petastorm.generator": "LIST_SIZE generate_datapoint",
    "petastorm.hdfs": "",
    "petastorm.hdfs.namenode": (
        "HAHdfsClient HdfsConnectError HdfsConnector HdfsNamenodeResolver MaxFailoversExceeded "
        "failover_all_class_methods namenode_failover"
    ),
    "petastorm.local_disk_cache": "CacheBase LocalDiskCache",
    "petastorm.namedtuple_gt_255_fields": "namedtuple_gt_255_fields",
    "petastorm.ngram": "NGram UnischemaField match_unischema_fields",
    "petastorm.predicates": "PredicateBase in_intersection in_lambda in_negate in_pseudorandom_split in_reduce in_set",
    "petastorm.py_dict_reader_worker": (
        "EmptyResultError NullCache PyDictReaderWorker PyDictReaderWorkerResultsQueueReader WorkerBase utils"
    ),
    "petastorm.pyarrow_helpers": "",
    "petastorm.pyarrow_helpers.batching_table_queue": "BatchingTableQueue",
    "petastorm.pytorch": (
        "BatchedDataLoader BatchedNoopShufflingBuffer BatchedRandomShufflingBuffer DataLoader InMemBatchedDataLoader "
        "LoaderBase NoopShufflingBuffer RandomShufflingBuffer decimal_friendly_collate"
    ),
    "petastorm.reader": (
        "ArrowReaderWorker ArrowTableSerializer ConcurrentVentilator DummyPool LOCAL_DISK_CACHE LocalDiskCache NGram "
        "NULL_CACHE NoDataAvailableError NullCache PetastormMetadataError PickleSerializer PredicateBase ProcessPool "
        "PyDictReaderWorker Reader RowGroupSelectorBase ThreadPool dataset_metadata get_filesystem_and_path_or_paths "
        "infer_or_load_unischema make_batch_reader make_reader normalize_dataset_url_or_urls normalize_dir_url "
        "rowgroup_indexing transform_schema"
    ),
    "petastorm.reader_impl": "",
    "petastorm.reader_impl.arrow_table_serializer": "ArrowTableSerializer",
    "petastorm.reader_impl.pickle_serializer": "PickleSerializer",
    "petastorm.reader_impl.pytorch_shuffling_buffer": (
        "BatchedNoopShufflingBuffer BatchedRandomShufflingBuffer BatchedShufflingBufferBase"
    ),
    "petastorm.reader_impl.shuffling_buffer": "NoopShufflingBuffer RandomShufflingBuffer ShufflingBufferBase",
    "petastorm.selectors": "IntersectIndexSelector RowGroupSelectorBase SingleIndexSelector UnionIndexSelector",
    "petastorm.spark": "SparkDatasetConverter make_spark_converter",
    "petastorm.spark.spark_dataset_converter": (
        "CachedDataFrameMeta DEFAULT_ROW_GROUP_SIZE_BYTES FilesystemResolver SparkDatasetConverter "
        "TFDatasetContextManager TorchDatasetContextManager get_filesystem_and_path_or_paths make_batch_reader "
        "make_spark_converter normalize_dir_url register_delete_dir_handler"
    ),
    "petastorm.spark_utils": "FilesystemResolver dataset_as_rdd get_schema_from_dataset_url utils",
    "petastorm.test_util": "",
    "petastorm.test_util.reader_mock": "ReaderMock schema_data_generator_example",
    "petastorm.test_util.shuffling_analysis": (
        "ScalarCodec Unischema UnischemaField compute_correlation_distribution dict_to_spark_row "
        "generate_shuffle_analysis_dataset make_reader materialize_dataset"
    ),
    "petastorm.tf_utils": (
        "RANDOM_SHUFFLING_QUEUE_SIZE date_to_nsec_from_epoch make_namedtuple_tf_ngram make_petastorm_dataset tf_tensors"
    ),
    "petastorm.tools": "",
    "petastorm.tools.copy_dataset": (
        "FilesystemResolver add_configure_spark_arguments args_parser configure_spark copy_dataset "
        "get_schema_from_dataset_url main match_unischema_fields materialize_dataset"
    ),
    "petastorm.tools.spark_session_cli": "add_configure_spark_arguments configure_spark",
    "petastorm.transform": "TransformSpec Unischema UnischemaField edit_field transform_schema",
    "petastorm.unischema": "Unischema UnischemaField dict_to_spark_row insert_explicit_nulls match_unischema_fields",
    "petastorm.utils": "DecodeFieldError add_to_dataset_metadata decode_row run_in_subprocess",
    "petastorm.weighted_sampling_reader": "WeightedSamplingReader",
    "petastorm.workers_pool": "EmptyResultError TimeoutWaitingForResultError VentilatedItemProcessedMessage",
    "petastorm.workers_pool.dummy_pool": "DummyPool EmptyResultError",
    "petastorm.workers_pool.exec_in_new_process": "exec_in_new_process",
    "petastorm.workers_pool.process_pool": (
        "EmptyResultError PickleSerializer ProcessPool VentilatedItemProcessedMessage exec_in_new_process"
    ),
    "petastorm.workers_pool.thread_pool": (
        "EmptyResultError ThreadPool VentilatedItemProcessedMessage WorkerTerminationRequested"
    ),
    "petastorm.workers_pool.ventilator": "ConcurrentVentilator Ventilator",
    "petastorm.workers_pool.worker_base": "WorkerBase",
}
"""Names in modules of Petastorm 0.13.1, their own and those imported from each other, without names that begin with `_`."""

LEFT_OUT = {
    "petastorm.etl.rowgroup_indexing": {"PARALLEL_SLICE_NUM"},  # the number of parts that Spark splits the work into
    "petastorm.pytorch": {"PY2"},
    "petastorm.workers_pool.thread_pool": {"IO_TIMEOUT_INTERVAL_S", "WorkerThread"},  # details of how its threads wait
}
"""Names that have no use in Penstock."""

OLD = {
    "petastorm.codec": "CompressedImageCodec NdarrayCodec ScalarCodec",
    "petastorm.tf_util": "make_petastorm_dataset tf_tensors",
}
"""Names of modules that older releases had."""

CHECK_IMPORTS = """
import importlib, json, sys
import penstock.dropin

missing = []
for module, names in json.load(sys.stdin).items():
    found = importlib.import_module(module)
    for name in names.split():
        scope = {}
        try:
            exec(f"from {module} import {name}", scope)
        except ImportError as error:
            missing.append(str(error))
            continue
        if scope[name] is not getattr(found, name):
            missing.append(f"{module}.{name} is another each time")
print(json.dumps(missing))
"""

LIST_NAMES = """
import importlib, inspect, json, pkgutil, sys, unittest.mock, warnings

warnings.simplefilter("ignore")
packages = ("tensorflow", "tensorflow.compat", "tensorflow.compat.v1", "torch", "torch.utils", "torch.utils.data")
for name in (*packages, "torch.utils.data.dataloader"):  # which need not be there
    sys.modules[name] = unittest.mock.MagicMock(__version__="2.0")
import petastorm


def is_theirs(name, value):
    if name.startswith("_") or name in {"logger", "tests"}:
        return False
    if inspect.ismodule(value):
        return value.__name__.startswith("petastorm.")
    if inspect.isclass(value) or inspect.isroutine(value):
        return str(getattr(value, "__module__", "")).startswith("petastorm")
    return name.isupper() or type(value).__module__.startswith("petastorm") or isinstance(value, (str, frozenset, set))


found = {"petastorm": petastorm}
for module in pkgutil.walk_packages(petastorm.__path__, "petastorm."):
    if ".tests" not in module.name and not module.name.endswith("_entrypoint"):
        found[module.name] = importlib.import_module(module.name)
names = {name: [each for each, value in vars(module).items() if is_theirs(each, value)] for name, module in found.items()}
imported = {name: {each.partition(".")[0] for each in (one[len(name) + 1:] for one in found if one.startswith(name + "."))}
            for name in found}
# What `import` leaves on a package depends on what else was imported.
print(json.dumps({name: sorted(set(each) - imported[name]) for name, each in names.items()}))
"""


def run(code: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run code in a new process, in which nothing is imported yet."""
    source = str(Path(importlib.import_module("penstock").__file__ or "").parent.parent)
    environment = {**os.environ, "PYTHONPATH": source}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], input=given, env=environment, capture_output=True, text=True, check=True
    )


def test_every_name_is_at_its_path() -> None:
    """Each name can be imported from each module where Petastorm has it."""
    assert json.loads(run(CHECK_IMPORTS, json.dumps({**NAMES, **OLD})).stdout) == []


def test_submodules_are_available_without_importing_them() -> None:
    """`import petastorm` makes the same submodules available as in Petastorm."""
    statement = "print(petastorm.utils.decode_row.__module__, petastorm.etl.dataset_metadata.UNISCHEMA_KEY.decode())"

    assert run(f"import penstock.dropin, petastorm; {statement}").stdout == (
        "penstock.petastorm.utils dataset-toolkit.unischema.v1\n"
    )


def test_an_unknown_name_raises() -> None:
    """An unknown name in a module raises AttributeError with the message of Python."""
    module = importlib.import_module("penstock.petastorm.reader")

    with pytest.raises(AttributeError, match=r"^module 'penstock\.petastorm\.reader' has no attribute 'nope'$"):
        _ = module.nope


@pytest.mark.peer
@pytest.mark.slow
def test_the_list_of_names_equals_that_of_petastorm(petastorm_python: Path) -> None:
    """`NAMES` lists exactly the names of Petastorm 0.13.1, except those in `LEFT_OUT`."""
    done = subprocess.run([petastorm_python, "-c", LIST_NAMES], check=True, capture_output=True, text=True)

    real = {name: set(names) for name, names in json.loads(done.stdout).items()}
    assert {name: set(names.split()) | LEFT_OUT.get(name, set()) for name, names in NAMES.items()} == real
