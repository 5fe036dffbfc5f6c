"""WebDataset: tar files of JPEGs and labels."""

# mypy: disable-error-code="import-not-found"
# The peer is installed in an interpreter of its own.

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import webdataset
from torch.utils.data import default_collate

from benchmarks.peers import turns

BATCH = 64
BUFFER = 1_000


def simplejpeg_handler(key: str, cell: bytes) -> Any:
    """Return the pixels of what is called `.jpg`; None leaves a cell to the handlers after this one."""
    return turns.decode_with_simplejpeg(cell) if key.endswith(".jpg") else None


def write(photos: Path, own: Path) -> None:
    """Write tar files."""
    with webdataset.ShardWriter(str(own / "%04d.tar"), maxsize=8e6) as sink:
        for file, label in turns.photos(photos):
            sink.write({"__key__": file.stem, "jpg": file.read_bytes(), "cls": label})


def prepare(own: Path, decode: Any, workers: int) -> Callable[[], turns.Batches]:
    """Return what starts an epoch; workers live on from epoch to epoch.

    Batches are made in the workers, as its documentation advises, and as tensors, which cross to the consumer in shared
    memory; arrays of NumPy would go through a pipe.
    """
    shards = sorted(str(path) for path in own.glob("*.tar"))
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards), seed=1)
        .shuffle(BUFFER)
        .decode(decode)
        .to_tuple("jpg", "cls")
        .batched(BATCH, collation_fn=default_collate)
    )
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return lambda: ((images, labels) for images, labels in loader)


if __name__ == "__main__":
    turns.serve(
        ["webdataset", "torch", "pillow", "simplejpeg"],
        write,
        {
            f"{name}-{workers}": partial(prepare, decode=decode, workers=workers)
            for name, decode in (("rgb8", "rgb8"), ("torchrgb8", "torchrgb8"), ("simplejpeg", simplejpeg_handler))
            for workers in (0, 2)
        },
    )
