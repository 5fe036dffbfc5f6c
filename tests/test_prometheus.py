"""Metrics of loaders, read from a real Prometheus registry in the way a server scrapes them."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Iterator

import pytest

import penstock as ps
from penstock import prometheus
from penstock.testing import example

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest  # noqa: E402 - it may be missing
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402 - the same


def scrape(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Return the values of all samples by name and labels, parsed from the text that a server gets."""
    text = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels, reverse=True))): sample.value
        for sample in samples
    }


@pytest.fixture
def global_registry() -> Iterator[CollectorRegistry]:
    """Return the global registry, and remove afterwards what the test registered."""
    before = set(REGISTRY._collector_to_names)
    yield REGISTRY
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


def test_statistics_of_loaders_are_metrics() -> None:
    """The statistics of each loader are metrics, labelled with the name of the loader."""
    registry = CollectorRegistry()
    train, other = ps.loader(example().batch(4)), ps.loader(example().batch(5).map(lambda batch: batch))
    prometheus.register({"train": train, "validation": other}, registry)
    first = scrape(registry)
    list(train)
    found, stats = scrape(registry), train.stats()

    assert first["penstock_rows_total", "train"] == 0
    assert found["penstock_rows_total", "train"] == 10
    assert found["penstock_batches_total", "train"] == 3
    assert found["penstock_units_read_total", "train"] == 3
    assert found["penstock_read_bytes_total", "train"] == stats.bytes_read > 0
    assert found["penstock_waited_seconds_total", "train"] == pytest.approx(stats.waited_seconds)
    assert found["penstock_busy_seconds_total", "train", "read"] == pytest.approx(stats.busy.read)
    assert found["penstock_processor_seconds_total", "train", "map"] == 0
    assert found["penstock_threads", "train"] == stats.threads
    assert found["penstock_rows_total", "validation"] == 0


def test_counters_only_grow() -> None:
    """Counters never decrease, over epochs and over restarts of a loader."""
    registry, loader = CollectorRegistry(), ps.loader(example().shuffle(seed=1).batch(2))
    prometheus.register({"train": loader}, registry)
    seen = []
    for _ in range(3):
        for _batch in loader:
            seen.append(scrape(registry))
            if len(seen) % 4 == 0:
                break

    assert all(after[name] >= before[name] for before, after in itertools.pairwise(seen) for name in before)


def test_a_loader_that_is_gone_has_no_metrics() -> None:
    """Metrics keep no loader alive, and a loader that is gone has none."""
    registry, alive, gone = CollectorRegistry(), ps.loader(example().batch(2)), ps.loader(example().batch(3))
    prometheus.register({"kept": alive, "gone": gone}, registry)
    del gone
    gc.collect()

    assert {labels[0] for _, *labels in scrape(registry) if labels} == {"kept"}


def test_one_registry_has_one_exporter(global_registry: CollectorRegistry) -> None:
    """A second exporter in one registry raises ArgumentError, which says how to remove the first."""
    train, other = ps.loader(example().batch(2)), ps.loader(example().batch(3))
    exporter = prometheus.register({"train": train})

    with pytest.raises(
        ps.errors.ArgumentError,
        match=r"expected one call with all loaders, .*Unregister the first result: registry\.unregister\(exporter\)\.",
    ):
        prometheus.register({"validation": other})
    global_registry.unregister(exporter)
    prometheus.register({"train": train, "validation": other})

    assert scrape(global_registry)["penstock_rows_total", "validation"] == 0


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without prometheus_client, `register` raises MissingExtraError with the extra to install."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(ps.errors.MissingExtraError, match=r"pip install 'penstock\[prometheus\]'"):
        prometheus.register({})


def test_the_torch_loader_has_metrics_too() -> None:
    """A loader of tensors has the same metrics as any other."""
    pytest.importorskip("torch")
    registry, loader = CollectorRegistry(), ps.torch.loader(example().select("id").batch(5))
    prometheus.register({"train": loader}, registry)
    list(loader)

    assert scrape(registry)["penstock_rows_total", "train"] == 10
    assert loader.stats().remedy.endswith(".")
