"""Stages: how a pipeline cuts the layers. Capacity in blocks is the smallest over the stages; bytes are each stage's own."""

from gateway.core.geometry.groups import Layer


def even_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage as vLLM cuts them: alike, the remainder to the stages before the last one.

    61 over 4 is 15, 15, 16, 15. Raises ValueError where a stage would be empty.
    """
    if stages > layers:
        raise ValueError(f"{layers} layers cannot be cut into {stages} stages")
    counts = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        counts[-place] += 1
    return tuple(counts)


def cut(layers: tuple[Layer, ...], partition: tuple[int, ...]) -> tuple[tuple[Layer, ...], ...]:
    """The layers of each stage. Raises ValueError where the partition does not add up to the layers."""
    if sum(partition) != len(layers):
        raise ValueError(f"the stages hold {sum(partition)} layers together, and the model has {len(layers)}")
    ends = [sum(partition[: place + 1]) for place in range(len(partition))]
    return tuple(layers[end - count : end] for count, end in zip(partition, ends, strict=True))
