"""What loaders count, as metrics that Prometheus scrapes; it needs the extra `prometheus`."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol, cast

from penstock._engine.runtime.stats import Stats
from penstock.errors import ArgumentError, MissingExtraError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector, CollectorRegistry

__all__ = ["Exporter", "Watched", "register"]

# The name of a metric, without the `penstock_` before it and the `_total` after it; what it counts; where it is found.
COUNTERS = (
    ("batches", "Batches, or single rows, handed out.", "batches"),
    ("rows", "Rows handed out.", "rows"),
    ("units_read", "Units read, also ahead.", "units_read"),
    ("read_bytes", "Bytes that the columns of these units take on storage.", "bytes_read"),
    ("waited_seconds", "What the consumer waited in next().", "waited_seconds"),
    ("consumer_seconds", "What the consumer took between calls of next().", "consumer_seconds"),
    ("consumer_processor_seconds", "What the consumer's thread spent on a processor.", "consumer_processor_seconds"),
    ("queued_seconds", "What the loader's threads were ready to run and no processor was free.", "queued_seconds"),
)
KINDS = (
    ("busy_seconds", "What the loader's threads were busy with.", "busy"),
    ("processor_seconds", "What they spent on a processor.", "processor"),
    ("inline_seconds", "What was done in the consumer's own thread, while it waited.", "inline"),
)


class Watched(Protocol):
    """A loader, as `penstock.loader` and the adapters make them."""

    def stats(self) -> Stats:
        """Return what it did so far."""
        ...


class Exporter:
    """What a registry asks for metrics; `register` makes one, and `registry.unregister` takes it away.

    It does not keep loaders alive: one that is gone is no longer told of.

    Example:
        >>> from penstock.testing import example
        >>> from penstock import loader
        >>> train = loader(example().batch(5))
        >>> rows = sum(len(batch["id"]) for batch in train)
        >>> found = {metric.name: metric.samples for metric in Exporter({"train": train}).collect()}
        >>> found["penstock_rows"][0].labels, found["penstock_rows"][0].value
        ({'loader': 'train'}, 10)
    """

    def __init__(self, loaders: Mapping[str, Watched]) -> None:
        """Store which loaders are watched, by the names they have in metrics."""
        self._loaders = {name: weakref.ref(loader) for name, loader in loaders.items()}

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, so that a registry knows their names."""
        return _metrics({})

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all loaders that are still there."""
        there = {name: loader() for name, loader in self._loaders.items()}
        return _metrics({name: loader.stats() for name, loader in there.items() if loader is not None})


def register(loaders: Mapping[str, Watched], registry: CollectorRegistry | None = None) -> Exporter:
    """Have a registry tell what loaders count, whenever it is scraped.

    Args:
        loaders: The loaders, by the names that the label `loader` of each metric has.
        registry: Where to register; by default where `prometheus_client.start_http_server` looks.

    Raises:
        ArgumentError: If loaders are registered there already.
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
            "Loaders are registered there already, and metrics have one source. Unregister what the first call returned: "
            'registry.unregister(exporter), and register all loaders together: register({"train": ..., "validation": ...}).'
        )
        raise ArgumentError(msg) from error
    return exporter


def _metrics(found: Mapping[str, Stats]) -> Iterator[Metric]:
    """Yield metrics, each with its values by loader."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, told, attribute in COUNTERS:
        metric = CounterMetricFamily(f"penstock_{name}", told, labels=["loader"])
        for loader, stats in found.items():
            metric.add_metric([loader], getattr(stats, attribute))
        yield metric
    for name, told, attribute in KINDS:
        metric = CounterMetricFamily(f"penstock_{name}", told, labels=["loader", "kind"])
        for loader, stats in found.items():
            for kind, seconds in asdict(getattr(stats, attribute)).items():
                metric.add_metric([loader, kind], seconds)
        yield metric
    threads = GaugeMetricFamily("penstock_threads", "How many threads the loader has.", labels=["loader"])
    for loader, stats in found.items():
        threads.add_metric([loader], stats.threads)
    yield threads
