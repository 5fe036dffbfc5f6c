"""Hugging Face datasets: Parquet files with a column of images, streamed."""

# mypy: disable-error-code="import-not-found"
# The peer is installed in an interpreter of its own.

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from torch.utils.data import DataLoader, default_collate

from benchmarks.peers import turns

BATCH = 64
BUFFER = 1_000
FILES = 4
GROUP = 125


def write(photos: Path, own: Path) -> None:
    """Write Parquet files, several, so that workers can share them."""
    found = list(turns.photos(photos))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    for file in range(FILES):
        part = found[file * len(found) // FILES : (file + 1) * len(found) // FILES]
        columns = {
            "image": [{"bytes": path.read_bytes(), "path": None} for path, _ in part],
            "label": [label for _, label in part],
        }
        table = datasets.Dataset.from_dict(columns, features=features)
        table.to_parquet(str(own / f"part-{file}.parquet"), batch_size=GROUP)


def _stack(rows: list[dict[str, Any]], decode: Callable[[Any], Any]) -> Any:
    return default_collate([(decode(row["image"]), row["label"]) for row in rows])


def _cell(image: dict[str, Any]) -> Any:
    return turns.decode_with_simplejpeg(image["bytes"])


def prepare(own: Path, variant: str, workers: int) -> Callable[[], turns.Batches]:
    """Return what starts an epoch, each shuffled anew; workers live on from epoch to epoch."""
    files = sorted(str(path) for path in own.glob("*.parquet"))
    stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, cache_dir=str(own / "cache"))
    collate: Any = None
    if variant == "pil":
        collate = partial(_stack, decode=np.array)
    elif variant == "simplejpeg":
        stream, collate = stream.cast_column("image", datasets.Image(decode=False)), partial(_stack, decode=_cell)
    else:
        stream = stream.with_format(variant)
    # With its default of ten files at once, an epoch ends with a sleep of five seconds (datasets 5.2.0).
    stream = stream.shuffle(seed=1, buffer_size=BUFFER, max_buffer_input_shards=1)
    loader: Any = DataLoader(stream, batch_size=BATCH, num_workers=workers, collate_fn=collate, persistent_workers=workers > 0)

    def epoch() -> Iterator[tuple[Any, Any]]:
        stream.set_epoch(stream.epoch + 1)
        for batch in loader:
            yield (batch["image"], batch["label"]) if isinstance(batch, dict) else batch

    return epoch


if __name__ == "__main__":
    turns.serve(
        ["datasets", "torch", "pyarrow", "pillow", "simplejpeg"],
        write,
        {
            f"{name}-{workers}": partial(prepare, variant=name, workers=workers)
            for name in ("pil", "torch", "numpy", "simplejpeg")
            for workers in (0, 2)
        },
    )
