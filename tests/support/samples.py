"""What a scrape would read: one sample of the exposition, by name and labels."""

from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import Metrics


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    """The value of the one sample with this name whose labels include these; None if there is none."""
    values = [
        found.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for found in family.samples
        if found.name == name and labels.items() <= found.labels.items()
    ]
    assert len(values) < 2, f"{len(values)} samples of {name} {labels}"
    return values[0] if values else None
