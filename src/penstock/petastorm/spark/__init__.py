"""`petastorm.spark`: data frames of Spark as datasets. Not supported yet."""

from __future__ import annotations

from penstock.petastorm.spark import spark_dataset_converter
from penstock.petastorm.spark.spark_dataset_converter import SparkDatasetConverter, make_spark_converter

__all__ = ["SparkDatasetConverter", "make_spark_converter", "spark_dataset_converter"]
