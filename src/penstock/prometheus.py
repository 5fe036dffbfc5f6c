"""Statistics of loaders as metrics for Prometheus; needs the extra `prometheus`."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol, cast

from penstock.errors import ArgumentError, MissingExtraError
from penstock.stats import Stats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector, CollectorRegistry

__all__ = ["Exporter", "Watched", "register"]

# The name of a metric without `penstock_` and `_total`, its help text, and the attribute of `Stats`.
COUNTERS = (
    ("batches", "Batches, or single rows, returned.", "batches"),
    ("rows", "Rows returned.", "rows"),
    ("units_read", "Units read, including those read ahead.", "units_read"),
    ("read_bytes", "Bytes of the columns of these units on storage.", "bytes_read"),
    ("waited_seconds", "Seconds that the consumer waited in next().", "waited_seconds"),
    ("consumer_seconds", "Seconds that the consumer took between calls of next().", "consumer_seconds"),
    ("consumer_processor_seconds", "Processor seconds of the consumer's thread.", "consumer_processor_seconds"),
    ("queued_seconds", "Seconds that the loader's threads waited for a free processor.", "queued_seconds"),
)
KINDS = (
    ("busy_seconds", "Seconds that the loader's threads worked, by kind of work.", "busy"),
    ("processor_seconds", "Processor seconds of the loader's threads, by kind of work.", "processor"),
    ("inline_seconds", "Seconds of work in the consumer's own thread, by kind of work.", "inline"),
)


class Watched(Protocol):
    """A loader of `penstock.loader` or of an adapter."""

    def stats(self) -> Stats:
        """Return the statistics so far."""
        ...


class Exporter:
    """A collector of metrics; `register` returns one, and `registry.unregister` removes it.

    It has weak references to loaders; a loader that is gone has no metrics.

    Example:
        >>> from penstock.testing import example
        >>> from penstock import loader
        >>> train = loader(example().batch(5))
        >>> rows = sum(len(batch["id"]) for batch in train)
        >>> metrics = {metric.name: metric.samples for metric in Exporter({"train": train}).collect()}
        >>> metrics["penstock_rows"][0].labels, metrics["penstock_rows"][0].value
        ({'loader': 'train'}, 10)
    """

    def __init__(self, loaders: Mapping[str, Watched]) -> None:
        """Store the loaders, by their names in metrics."""
        self._loaders = {name: weakref.ref(loader) for name, loader in loaders.items()}

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, for a registry to know their names."""
        return _metrics({})

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all loaders that are alive."""
        loaders = {name: loader() for name, loader in self._loaders.items()}
        return _metrics({name: loader.stats() for name, loader in loaders.items() if loader is not None})


def register(loaders: Mapping[str, Watched], registry: CollectorRegistry | None = None) -> Exporter:
    """Register the statistics of loaders as metrics.

    Args:
        loaders: The loaders, by the value of the label `loader` of their metrics.
        registry: The registry; by default that of `prometheus_client.start_http_server`.

    Raises:
        ArgumentError: If loaders are registered already.
        MissingExtraError: If prometheus_client is not installed.

    Example:
        >>> from prometheus_client import CollectorRegistry, generate_latest
        >>> from penstock.testing import example
        >>> from penstock import loader
        >>> registry, train = CollectorRegistry(), loader(example().batch(5))
        >>> exporter = register({"train": train}, registry)
        >>> b'penstock_rows_total{loader="train"} 0.0' in generate_latest(registry)
        True
    """
    try:
        from prometheus_client import REGISTRY
    except ModuleNotFoundError as error:
        msg = (
            "penstock.prometheus needs prometheus_client, which is not installed. "
            "Install it: pip install 'penstock[prometheus]'."
        )
        raise MissingExtraError(msg) from error
    exporter = Exporter(loaders)
    try:
        (REGISTRY if registry is None else registry).register(cast("Collector", exporter))
    except ValueError as error:
        msg = (
            "register() was called before with this registry; expected one call with all loaders, for example "
            'register({"train": ..., "validation": ...}). Unregister the first result: registry.unregister(exporter).'
        )
        raise ArgumentError(msg) from error
    return exporter


def _metrics(stats_by_loader: Mapping[str, Stats]) -> Iterator[Metric]:
    """Yield metrics, each with one value per loader."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, description, attribute in COUNTERS:
        metric = CounterMetricFamily(f"penstock_{name}", description, labels=["loader"])
        for loader, stats in stats_by_loader.items():
            metric.add_metric([loader], getattr(stats, attribute))
        yield metric
    for name, description, attribute in KINDS:
        metric = CounterMetricFamily(f"penstock_{name}", description, labels=["loader", "kind"])
        for loader, stats in stats_by_loader.items():
            for kind, seconds in asdict(getattr(stats, attribute)).items():
                metric.add_metric([loader, kind], seconds)
        yield metric
    threads = GaugeMetricFamily("penstock_threads", "Threads of the loader.", labels=["loader"])
    for loader, stats in stats_by_loader.items():
        threads.add_metric([loader], stats.threads)
    yield threads
