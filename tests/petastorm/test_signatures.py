"""Functions and classes have the arguments of Petastorm in the same order. New arguments are keyword-only."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from penstock.errors import MissingExtraError
from penstock.petastorm import Reader

SIGNATURES = {
    "reader.make_reader": (
        "dataset_url, schema_fields=None, reader_pool_type='thread', workers_count=10, pyarrow_serialize=False, "
        "results_queue_size=50, seed=None, shuffle_rows=False, shuffle_row_groups=True, "
        "shuffle_row_drop_partitions=1, predicate=None, rowgroup_selector=None, num_epochs=1, cur_shard=None, "
        "shard_count=None, shard_seed=None, cache_type='null', cache_location=None, cache_size_limit=None, "
        "cache_row_size_estimate=None, cache_extra_settings=None, hdfs_driver='libhdfs3', transform_spec=None, "
        "filters=None, storage_options=None, zmq_copy_buffers=True, filesystem=None, convert_early_to_numpy=False"
    ),
    "reader.make_batch_reader": (
        "dataset_url_or_urls, schema_fields=None, reader_pool_type='thread', workers_count=10, "
        "results_queue_size=50, seed=None, shuffle_rows=False, shuffle_row_groups=True, "
        "shuffle_row_drop_partitions=1, predicate=None, rowgroup_selector=None, num_epochs=1, cur_shard=None, "
        "shard_count=None, shard_seed=None, cache_type='null', cache_location=None, cache_size_limit=None, "
        "cache_row_size_estimate=None, cache_extra_settings=None, hdfs_driver='libhdfs3', transform_spec=None, "
        "filters=None, storage_options=None, zmq_copy_buffers=True, filesystem=None, convert_early_to_numpy=False"
    ),
    "reader.normalize_dataset_url_or_urls": "dataset_url_or_urls",
    "unischema.UnischemaField": "name, numpy_dtype, shape, codec=None, nullable=False",
    "unischema.Unischema": "name, fields",
    "unischema.dict_to_spark_row": "unischema, row_dict",
    "unischema.insert_explicit_nulls": "unischema, row_dict",
    "unischema.match_unischema_fields": "schema, field_regex",
    "codecs.CompressedImageCodec": "image_codec='png', quality=80",
    "codecs.NdarrayCodec": "",
    "codecs.CompressedNdarrayCodec": "",
    "codecs.ScalarCodec": "spark_type",
    "transform.TransformSpec": "func=None, edit_fields=None, removed_fields=None, selected_fields=None",
    "transform.edit_field": "name, numpy_dtype, shape, nullable=False",
    "transform.transform_schema": "schema, transform_spec",
    "etl.dataset_metadata.materialize_dataset": (
        "spark, dataset_url, schema, row_group_size_mb=None, use_summary_metadata=False, filesystem_factory=None"
    ),
    "etl.dataset_metadata.get_schema": "dataset",
    "etl.dataset_metadata.get_schema_from_dataset_url": (
        "dataset_url_or_urls, hdfs_driver='libhdfs3', storage_options=None, filesystem=None"
    ),
    "etl.dataset_metadata.infer_or_load_unischema": "dataset",
    "etl.dataset_metadata.load_row_groups": "dataset",
    "etl.rowgroup_indexers.SingleFieldIndexer": "index_name, index_field",
    "etl.rowgroup_indexers.FieldNotNullIndexer": "index_name, index_field",
    "etl.rowgroup_indexing.build_rowgroup_index": "dataset_url, spark_context, indexers, hdfs_driver='libhdfs3'",
    "etl.rowgroup_indexing.get_row_group_indexes": "dataset",
    "etl.legacy.restricted_loads": "s",
    "etl.legacy.depickle_legacy_package_name_compatible": "pickled_string",
    "etl.petastorm_generate_metadata.generate_petastorm_metadata": (
        "spark, dataset_url, unischema_class=None, use_summary_metadata=False, hdfs_driver='libhdfs3'"
    ),
    "selectors.SingleIndexSelector": "index_name, values_list",
    "selectors.IntersectIndexSelector": "single_index_selectors",
    "selectors.UnionIndexSelector": "single_index_selectors",
    "predicates.in_set": "inclusion_values, predicate_field",
    "predicates.in_intersection": "inclusion_values, _predicate_field",
    "predicates.in_lambda": "predicate_fields, predicate_func, state_arg=None",
    "predicates.in_negate": "predicate",
    "predicates.in_reduce": "predicate_list, reduce_func",
    "predicates.in_pseudorandom_split": "fraction_list, subset_index, predicate_field",
    "ngram.NGram": "fields, delta_threshold, timestamp_field, timestamp_overlap=True",
    "local_disk_cache.LocalDiskCache": "path, size_limit_bytes, expected_row_size_bytes, shards=6, cleanup=True, **settings",
    "weighted_sampling_reader.WeightedSamplingReader": "readers, probabilities",
    "pytorch.decimal_friendly_collate": "batch",
    "pytorch.BatchedDataLoader": "reader, batch_size=1, transform_fn=None, shuffling_queue_capacity=0",
    "pytorch.InMemBatchedDataLoader": (
        "reader, batch_size=1, transform_fn=None, num_epochs=1, seed=0, rows_capacity=1024, shuffle=False"
    ),
    "spark.make_spark_converter": "df, parquet_row_group_size_bytes=33554432, compression_codec=None, dtype='float32'",
    "spark.SparkDatasetConverter": "cache_dir_url, file_urls, dataset_size",
    "spark_utils.dataset_as_rdd": "dataset_url, spark_session, schema_fields=None, hdfs_driver='libhdfs3'",
    "fs_utils.get_filesystem_and_path_or_paths": "url_or_urls, hdfs_driver='libhdfs3', storage_options=None, filesystem=None",
    "fs_utils.get_dataset_path": "parsed_url",
    "fs_utils.normalize_dir_url": "dataset_url",
    "hdfs.namenode.HdfsNamenodeResolver": "hadoop_configuration=None",
    "hdfs.namenode.HAHdfsClient": "connector_cls, list_of_namenodes, user=None",
    "hdfs.namenode.MaxFailoversExceeded": "failed_exceptions, max_failover_attempts, func_name",
    "utils.decode_row": "row, schema",
    "utils.run_in_subprocess": "func, *args, **kwargs",
    "utils.add_to_dataset_metadata": "dataset, key, value",
    "generator.generate_datapoint": "schema",
    "tools.copy_dataset.copy_dataset": (
        "spark, source_url, target_url, field_regex, not_null_fields, overwrite_output, partitions_count, "
        "row_group_size_mb, hdfs_driver='libhdfs3'"
    ),
    "tools.spark_session_cli.configure_spark": "spark_session_builder, args",
    "tools.spark_session_cli.add_configure_spark_arguments": "argparser",
    "benchmark.throughput.reader_throughput": (
        "dataset_url, field_regex=None, warmup_cycles_count=300, measure_cycles_count=1000, "
        "pool_type=<WorkerPoolType.THREAD: 'thread'>, loaders_count=3, profile_threads=False, "
        "read_method=<ReadMethod.PYTHON: 'python'>, shuffling_queue_size=500, min_after_dequeue=400, "
        "reader_extra_args=None, spawn_new_process=True"
    ),
    "benchmark.cli.main": "",
    "benchmark.dummy_reader.DummyReader": "batch=1000, dim=64",
    "benchmark.dummy_reader.main": "device='cpu', batch=1000, dim=64",
    "arrow_reader_worker.convert_arrow_table_to_numpy_dict": "result_table, schema",
    "etl.petastorm_generate_metadata.main": "",
    "hdfs.namenode.failover_all_class_methods": "decorator",
    "namedtuple_gt_255_fields.namedtuple_gt_255_fields": "typename, field_names, verbose=False, rename=False, module=None",
    "tf_utils.date_to_nsec_from_epoch": "dt",
    "tf_utils.make_namedtuple_tf_ngram": "unischema, ngram, *args, **kargs",
    "tools.copy_dataset.main": "",
    "workers_pool.exec_in_new_process.exec_in_new_process": "func, *args, **kargs",
    "test_util.reader_mock.ReaderMock": "schema, schema_data_generator, ngram=None",
    "test_util.reader_mock.schema_data_generator_example": "schema",
    "test_util.shuffling_analysis.generate_shuffle_analysis_dataset": (
        "spark, output_dataset_url, num_rows=1000, row_group_size=100"
    ),
    "test_util.shuffling_analysis.compute_correlation_distribution": (
        "dataset_url, id_column, shuffle_row_drop_partitions, num_corr_samples=100"
    ),
    "pyarrow_helpers.batching_table_queue.BatchingTableQueue": "batch_size",
    "reader_impl.shuffling_buffer.RandomShufflingBuffer": (
        "shuffling_buffer_capacity, min_after_retrieve, extra_capacity=1000"
    ),
    "reader_impl.pytorch_shuffling_buffer.BatchedNoopShufflingBuffer": "batch_size=1",
    "reader_impl.pytorch_shuffling_buffer.BatchedRandomShufflingBuffer": (
        "shuffling_buffer_capacity, min_after_retrieve, extra_capacity=1000, batch_size=1"
    ),
    "workers_pool.thread_pool.ThreadPool": (
        "workers_count, results_queue_size=50, profiling_enabled=False, shuffle_rows=False, seed=None"
    ),
    "workers_pool.process_pool.ProcessPool": "workers_count, serializer=None, zmq_copy_buffers=True",
    "workers_pool.dummy_pool.DummyPool": "workers=None",
    "workers_pool.worker_base.WorkerBase": "worker_id, publish_func, args",
}
"""Names below `petastorm` and their arguments in Petastorm 0.13.1."""

READER = (
    "pyarrow_filesystem, dataset_path, schema_fields=None, seed=None, shuffle_rows=False, "
    "shuffle_row_groups=True, shuffle_row_drop_partitions=1, predicate=None, rowgroup_selector=None, "
    "reader_pool=None, num_epochs=1, cur_shard=None, shard_count=None, cache=None, worker_class=None, "
    "transform_spec=None, is_batched_reader=False, filters=None, shard_seed=None, convert_early_to_numpy=False"
)


def resolve(name: str) -> Any:
    """Return an object of the compatibility package by its name."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(f"penstock.petastorm.{module}"), last)


def formatted(parameter: inspect.Parameter) -> str:
    """Return an argument as it is written in a signature."""
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
    default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
    return f"{stars}{parameter.name}{default}"


def arguments(call: Any) -> str:
    """Return the arguments of a function that can be passed by position."""
    every = inspect.signature(call).parameters.values()
    return ", ".join(formatted(one) for one in every if one.kind is not inspect.Parameter.KEYWORD_ONLY)


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_those_of_petastorm(name: str) -> None:
    """Arguments have Petastorm's names, order and defaults, since callers may pass them by position or by name."""
    if name.startswith("pytorch."):
        pytest.importorskip("torch")

    assert arguments(resolve(name)) == SIGNATURES[name]


def test_arguments_of_a_reader_are_those_of_petastorm() -> None:
    """`Reader` has Petastorm's arguments, but the path is optional, as in the first releases."""
    assert arguments(Reader) == READER.replace("dataset_path,", "dataset_path=None,")


@pytest.mark.parametrize(
    ("name", "extra", "given"),
    [
        ("etl.dataset_metadata.materialize_dataset", "spark", (None, "file:///t", None)),
        ("spark.make_spark_converter", "spark", (None,)),
        ("spark.SparkDatasetConverter", "spark", ("file:///t", [], 0)),
        ("spark_utils.dataset_as_rdd", "spark", ("file:///t", None)),
        ("test_util.shuffling_analysis.generate_shuffle_analysis_dataset", "spark", (None, "file:///t")),
        ("tf_utils.make_petastorm_dataset", "tensorflow", (None,)),
        ("tf_utils.tf_tensors", "tensorflow", (None,)),
        ("tf_util.make_petastorm_dataset", "tensorflow", (None,)),
        ("spark.spark_dataset_converter.register_delete_dir_handler", "spark", (None,)),
    ],
)
def test_functions_that_are_not_implemented_raise(name: str, extra: str, given: tuple[Any, ...]) -> None:
    """A function that is not implemented can be imported. Calling it raises an error with the extra and an alternative."""
    with pytest.raises(MissingExtraError, match=rf"pip install 'penstock\[{extra}\]'\. Until then use "):
        resolve(name)(*given)
