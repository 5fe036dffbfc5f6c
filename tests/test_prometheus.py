"""Loaders as Prometheus sees them: through a real registry, scraped as a server would."""

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


def scraped(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Return the values of all samples, by name and labels, as whoever scrapes parses them."""
    text = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels, reverse=True))): sample.value
        for sample in samples
    }


@pytest.fixture
def everywhere() -> Iterator[CollectorRegistry]:
    """Return the registry of the whole program, and leave it as it was."""
    before = set(REGISTRY._collector_to_names)
    yield REGISTRY
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


def test_what_a_loader_counts_is_scraped() -> None:
    """Every number of the statistics is a metric, labelled with the name of its loader."""
    registry = CollectorRegistry()
    train, other = ps.loader(example().batch(4)), ps.loader(example().batch(5).map(lambda batch: batch))
    prometheus.register({"train": train, "validation": other}, registry)
    first = scraped(registry)
    list(train)
    found, stats = scraped(registry), train.stats()

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
    """Over epochs, and over a loader's restarts, no counter ever goes back."""
    registry, loader = CollectorRegistry(), ps.loader(example().shuffle(seed=1).batch(2))
    prometheus.register({"train": loader}, registry)
    seen = []
    for _ in range(3):
        for _batch in loader:
            seen.append(scraped(registry))
            if len(seen) % 4 == 0:
                break

    assert all(after[name] >= before[name] for before, after in itertools.pairwise(seen) for name in before)


def test_a_loader_that_is_gone_is_told_of_no_more() -> None:
    """Metrics keep no loader alive."""
    registry, kept, gone = CollectorRegistry(), ps.loader(example().batch(2)), ps.loader(example().batch(3))
    prometheus.register({"kept": kept, "gone": gone}, registry)
    del gone
    gc.collect()

    assert {labels[0] for _, *labels in scraped(registry) if labels} == {"kept"}


def test_one_registry_has_one_exporter(everywhere: CollectorRegistry) -> None:
    """Two sources of the same metrics would be wrong to whoever scrapes them; the message says what to do."""
    train, other = ps.loader(example().batch(2)), ps.loader(example().batch(3))
    exporter = prometheus.register({"train": train})

    with pytest.raises(
        ps.errors.ArgumentError,
        match=r"expected one call with all loaders, .*Unregister the first result: registry\.unregister\(exporter\)\.",
    ):
        prometheus.register({"validation": other})
    everywhere.unregister(exporter)
    prometheus.register({"train": train, "validation": other})

    assert scraped(everywhere)["penstock_rows_total", "validation"] == 0


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has not installed it is told how to."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(ps.errors.MissingExtraError, match=r"pip install 'penstock\[prometheus\]'"):
        prometheus.register({})


def test_the_torch_loader_is_watched_alike() -> None:
    """A loader of tensors counts as any other."""
    pytest.importorskip("torch")
    registry, loader = CollectorRegistry(), ps.torch.loader(example().select("id").batch(5))
    prometheus.register({"train": loader}, registry)
    list(loader)

    assert scraped(registry)["penstock_rows_total", "train"] == 10
    assert loader.stats().remedy.endswith(".")
