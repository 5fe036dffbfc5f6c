"""Names that modules of Petastorm import, and that scripts import from those modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["REEXPORTS", "reexport"]

ROOT = "penstock.petastorm"

REEXPORTS: Mapping[str, Mapping[str, str]] = {
    "": {
        "": "arrow_reader_worker cache errors etl fs_utils hdfs local_disk_cache ngram predicates py_dict_reader_worker reader "
        "reader_impl selectors transform unischema utils workers_pool"
    },
    "benchmark.throughput": {
        "reader_impl.pickle_serializer": "PickleSerializer",
        "workers_pool.dummy_pool": "DummyPool",
        "workers_pool.process_pool": "ProcessPool",
        "workers_pool.thread_pool": "ThreadPool",
    },
    "etl": {"etl": "dataset_metadata legacy rowgroup_indexing"},
    "etl.dataset_metadata": {
        "": "utils",
        "etl.legacy": "depickle_legacy_package_name_compatible",
        "fs_utils": "FilesystemResolver get_dataset_path get_filesystem_and_path_or_paths",
    },
    "etl.metadata_util": {"etl": "dataset_metadata rowgroup_indexing", "fs_utils": "FilesystemResolver"},
    "etl.petastorm_generate_metadata": {
        "etl.dataset_metadata": "ROW_GROUPS_PER_FILE_KEY materialize_dataset",
        "etl.rowgroup_indexing": "ROWGROUPS_INDEX_KEY",
        "fs_utils": "FilesystemResolver",
        "utils": "add_to_dataset_metadata",
    },
    "etl.rowgroup_indexing": {
        "": "utils",
        "etl": "dataset_metadata",
        "etl.legacy": "depickle_legacy_package_name_compatible",
        "fs_utils": "FilesystemResolver",
    },
    "reader": {
        "arrow_reader_worker": "ArrowReaderWorker",
        "etl": "dataset_metadata rowgroup_indexing",
        "etl.dataset_metadata": "PetastormMetadataError infer_or_load_unischema",
        "fs_utils": "get_filesystem_and_path_or_paths normalize_dir_url",
        "local_disk_cache": "LocalDiskCache",
        "ngram": "NGram",
        "py_dict_reader_worker": "PyDictReaderWorker",
        "reader_impl.arrow_table_serializer": "ArrowTableSerializer",
        "reader_impl.pickle_serializer": "PickleSerializer",
        "transform": "transform_schema",
        "workers_pool.dummy_pool": "DummyPool",
        "workers_pool.process_pool": "ProcessPool",
        "workers_pool.ventilator": "ConcurrentVentilator",
    },
    "reader_impl": {"reader_impl": "arrow_table_serializer pickle_serializer"},
    "spark.spark_dataset_converter": {
        "fs_utils": "FilesystemResolver get_filesystem_and_path_or_paths normalize_dir_url",
        "reader": "make_batch_reader",
    },
    "spark_utils": {"": "utils", "etl.dataset_metadata": "get_schema_from_dataset_url", "fs_utils": "FilesystemResolver"},
    "test_util.shuffling_analysis": {
        "codecs": "ScalarCodec",
        "etl.dataset_metadata": "materialize_dataset",
        "unischema": "Unischema UnischemaField dict_to_spark_row",
    },
    "tools.copy_dataset": {
        "etl.dataset_metadata": "get_schema_from_dataset_url materialize_dataset",
        "fs_utils": "FilesystemResolver",
        "tools.spark_session_cli": "configure_spark",
    },
    "workers_pool": {"workers_pool": "exec_in_new_process ventilator worker_base"},
    "workers_pool.dummy_pool": {"workers_pool": "EmptyResultError"},
    "workers_pool.process_pool": {
        "reader_impl.pickle_serializer": "PickleSerializer",
        "workers_pool": "EmptyResultError VentilatedItemProcessedMessage",
        "workers_pool.exec_in_new_process": "exec_in_new_process",
    },
    "workers_pool.thread_pool": {"workers_pool": "EmptyResultError VentilatedItemProcessedMessage"},
}
"""Names by module and source module, both without `petastorm.`. A name may be that of a module."""


def reexport(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, which imports a name when it is first used.

    Modules that import each other can therefore re-export names of each other.
    """
    here = module.removeprefix(ROOT).removeprefix(".")
    sources = {name: source for source, names in REEXPORTS.get(here, {}).items() for name in names.split()}

    def import_name(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        source = f"{ROOT}.{sources[name]}".removesuffix(".")
        module_of_name = importlib.import_module(source)
        if name in vars(module_of_name):
            return vars(module_of_name)[name]
        return importlib.import_module(f"{source}.{name}")

    return import_name
