"""Options of a command that starts Spark: `petastorm.tools.spark_session_cli`."""

from __future__ import annotations

import warnings
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

__all__ = ["add_configure_spark_arguments", "configure_spark", "tell_without_spark"]


def configure_spark(spark_session_builder: Any, args: Any) -> Any:
    """Return a builder of a session of Spark, set up as the options of a command say.

    Raises:
        RuntimeError: If the command does not have the options.
        ValueError: If a setting is no pair.
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
    argparser.add_argument("--master", type=str, help='Where Spark runs; "local[4]" for four workers on this machine.')
    argparser.add_argument(
        "--spark-session-config", type=str, nargs="+", help="Settings of the session of Spark, like spark.executor.memory=10g."
    )


def tell_without_spark(**options: Any) -> None:
    """Warn of options of a command that set up Spark, which it does without; those that nobody gave are None."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        verb, them = ("sets", "it") if len(given) == 1 else ("set", "them")
        msg = f"{' and '.join(given)} {verb} up Spark, and this command does its work on this machine, without Spark. "
        warnings.warn(f"{msg}Leave {them} out.", UserWarning, stacklevel=3)


def _cli_spark_session_config_to_dict(spark_session_config: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for pair in spark_session_config or ():
        key, sign, value = pair.partition("=")
        if not sign or not key or "=" in value:
            msg = f"Elements of spark_session_config list are expected to be in key=value format. Got: {pair}"
            raise ValueError(msg)
        found[key] = value
    return found
