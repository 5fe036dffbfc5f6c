"""LitData: chunks of JPEGs, streamed from the local disk."""

# mypy: disable-error-code="import-not-found"
# The peer is installed in an interpreter of its own.

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import litdata

from benchmarks.peers import turns

BATCH = 64


def _sample(photo: tuple[Path, int]) -> dict[str, Any]:
    file, label = photo
    return {"image": file.read_bytes(), "label": label}


def _decoded(sample: dict[str, Any], decode: Callable[[Any], Any]) -> tuple[Any, int]:
    return decode(sample["image"]), sample["label"]


def write(photos: Path, own: Path) -> None:
    """Write chunks of about the size of the row groups that others get."""
    inputs = list(turns.photos(photos))
    litdata.optimize(fn=_sample, inputs=inputs, output_dir=str(own / "chunks"), chunk_bytes="8MB", num_workers=1)


def prepare(own: Path, decode: Callable[[Any], Any], workers: int) -> Callable[[], turns.Batches]:
    """Return what starts an epoch; workers live on from epoch to epoch."""
    transform = partial(_decoded, decode=decode)
    dataset = litdata.StreamingDataset(str(own / "chunks"), shuffle=True, seed=1, transform=transform)
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=workers, shuffle=True, persistent_workers=workers > 0
    )
    return lambda: ((images, labels) for images, labels in loader)


if __name__ == "__main__":
    turns.serve(
        ["litdata", "torch", "pillow", "simplejpeg"],
        write,
        {
            f"{name}-{workers}": partial(prepare, decode=decode, workers=workers)
            for name, decode in (("pillow", turns.decode_with_pillow), ("simplejpeg", turns.decode_with_simplejpeg))
            for workers in (0, 2)
        },
    )
