"""`petastorm.tools.spark_session_cli`: options of commands that start Spark."""

from __future__ import annotations

import warnings
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

__all__ = ["add_configure_spark_arguments", "configure_spark", "warn_without_spark"]


def configure_spark(spark_session_builder: Any, args: Any) -> Any:
    """Return the builder of a Spark session, configured by the options of a command.

    Raises:
        RuntimeError: If the command does not have the options.
        ValueError: If a setting is not a key=value pair.
    """
    if not hasattr(args, "spark_session_config") or not hasattr(args, "master"):
        msg = (
            "--spark-session-config and/or --master were not found in parsed arguments. Call "
            "add_configure_spark_arguments() to add them."
        )
        raise RuntimeError(msg)
    for key, value in _cli_spark_session_config_to_dict(args.spark_session_config).items():
        spark_session_builder.config(key, value)
    if args.master:
        spark_session_builder.master(args.master)
    return spark_session_builder


def add_configure_spark_arguments(argparser: ArgumentParser) -> None:
    """Add the options to a command."""
    argparser.add_argument("--master", type=str, help='The master of Spark; "local[4]" for four workers on this machine.')
    argparser.add_argument(
        "--spark-session-config", type=str, nargs="+", help="Settings of the Spark session, like spark.executor.memory=10g."
    )


def warn_without_spark(**options: Any) -> None:
    """Warn of the options of Spark, which have no effect; those that are not given are None."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        verb, them = ("sets", "it") if len(given) == 1 else ("set", "them")
        msg = f"{' and '.join(given)} {verb} up Spark, and this command does its work on this machine, without Spark. "
        warnings.warn(f"{msg}Leave {them} out.", UserWarning, stacklevel=3)


def _cli_spark_session_config_to_dict(spark_session_config: Sequence[str] | None) -> dict[str, str]:
    settings = {}
    for pair in spark_session_config or ():
        key, sign, value = pair.partition("=")
        if not sign or not key or "=" in value:
            msg = f"Elements of spark_session_config list are expected to be in key=value format. Got: {pair}"
            raise ValueError(msg)
        settings[key] = value
    return settings
