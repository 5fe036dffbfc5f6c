"""EXIF orientation: with `orient=True` images are turned as Pillow turns them, in every way of decoding."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._blobs import Blobs
from penstock.codecs import Avif, Jpeg, Png, Webp
from penstock.errors import ArgumentError
from penstock.schema import CellProblem, Field, Schema
from penstock.schema.json import dump, load

pytest.importorskip("cv2", reason="images need OpenCV")
pytest.importorskip("simplejpeg", reason="JPEG needs simplejpeg")
Image = pytest.importorskip("PIL.Image", reason="Pillow writes what others write")
ImageOps = pytest.importorskip("PIL.ImageOps", reason="Pillow turns images")

ORIENTATION = 0x0112
EVERY = range(1, 9)
CODECS = [Jpeg, Png, Webp]
every_codec = pytest.mark.parametrize("kind", CODECS)
every_orientation = pytest.mark.parametrize("orientation", EVERY)


def image(height: int, width: int, channels: int = 3) -> Any:
    """Return an image that looks different in each of its orientations."""
    down, right = np.mgrid[:height, :width]
    every = [40 + 3 * down + right, 60 + 2 * down, 200 - 2 * right, 255 - down]
    return np.stack(every[:channels], -1).astype(np.uint8)


def exif_of(orientation: int) -> bytes:
    """Return EXIF data as Pillow writes it."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return bytes(exif.tobytes())


def saved(pixels: Any, kind: type[Any], exif: bytes | None) -> bytes:
    """Return an image as Pillow writes it."""
    file = io.BytesIO()
    options: dict[str, Any] = {"quality": 95} if kind is Jpeg else {"lossless": True} if kind is Webp else {}
    Image.fromarray(pixels.squeeze()).save(file, kind.title, **options, **({} if exif is None else {"exif": exif}))
    return file.getvalue()


def turned(pixels: Any, orientation: int) -> Any:
    """Return an image turned by Pillow."""
    found = Image.fromarray(pixels)
    found.getexif()[ORIENTATION] = orientation
    return np.asarray(ImageOps.exif_transpose(found))


def blobs(*cells: bytes) -> Blobs:
    """Return cells as a batch."""
    return Blobs.of(pa.array(cells))


def field_of(codec: Any, *shape: int | None) -> Field:
    """Return a field of images."""
    return Field("image", "uint8", shape or (None, None, 3), codec)


@every_orientation
@every_codec
def test_images_are_turned_as_pillow_turns_them(kind: type[Any], orientation: int) -> None:
    """Images are turned one by one, in arrays and when resized. Their shape is that of the turned image."""
    cell = saved(image(40, 24), kind, exif_of(orientation))
    plain = kind().decode(field_of(kind()), memoryview(cell))
    expected = turned(plain, orientation)
    field = field_of(kind(orient=True))
    out, small, view = (
        np.zeros((2, *expected.shape), np.uint8),
        np.zeros((1, 9, 7, 3), np.uint8),
        np.zeros((2, 50, 50, 3), "u1"),
    )
    inside = view[:, : expected.shape[0], : expected.shape[1]]

    kind(orient=True).decode_into(field, blobs(cell, cell), out)
    kind(orient=True).decode_into(field, blobs(cell, cell), inside)
    kind(orient=True).decode_resized(field, blobs(cell), small)

    np.testing.assert_array_equal(plain.shape, (40, 24, 3))
    np.testing.assert_array_equal(kind(orient=True).decode(field, memoryview(cell)), expected)
    np.testing.assert_array_equal(kind(orient=True).decode_each(field, blobs(cell))[0], expected)
    np.testing.assert_array_equal(out, [expected, expected])
    np.testing.assert_array_equal(inside, out)
    assert np.abs(small[0].astype(int) - np.asarray(Image.fromarray(expected).resize((7, 9), 4)).astype(int)).mean() < 4


@every_orientation
@pytest.mark.parametrize("shape", [(None, None), (None, None, 1), (None, None, None)])
def test_grey_is_turned_too(orientation: int, shape: tuple[int | None, ...]) -> None:
    """Grey images are turned with and without a dimension for the channel."""
    pixels = image(12, 20, 1)
    for kind in (Jpeg, Png):
        cell = saved(pixels, kind, exif_of(orientation))
        plain, field = kind().decode(field_of(kind(), None, None), memoryview(cell)), field_of(kind(orient=True), *shape)
        expected = turned(plain, orientation)

        found = kind(orient=True).decode(field, memoryview(cell))
        out = np.zeros((1, *expected.shape, *([] if len(shape) == 2 else [1])), np.uint8)
        kind(orient=True).decode_into(field, blobs(cell), out)

        assert found.shape == (*expected.shape, *([] if len(shape) == 2 else [1]))
        np.testing.assert_array_equal(found.squeeze(), expected)
        np.testing.assert_array_equal(out.squeeze(), expected)


@every_orientation
def test_images_with_alpha_or_16_bits_are_turned_too(orientation: int) -> None:
    """Images of four channels and images of 16 bits are turned."""
    alpha = image(6, 5, 4)
    deep = (np.arange(30).reshape(6, 5) * 2000).astype(np.uint16)
    file = io.BytesIO()
    Image.fromarray(deep).save(file, "PNG", exif=exif_of(orientation))

    found = Png(orient=True).decode(
        field_of(Png(orient=True), None, None, 4), memoryview(saved(alpha, Png, exif_of(orientation)))
    )
    wide = Png(orient=True).decode(Field("x", "uint16", (None, None), Png(orient=True)), memoryview(file.getvalue()))

    np.testing.assert_array_equal(found, turned(alpha, orientation))
    expected = {5: deep.T, 6: np.rot90(deep, -1), 7: deep[::-1, ::-1].T, 8: np.rot90(deep)}
    expected |= {1: deep, 2: deep[:, ::-1], 3: deep[::-1, ::-1], 4: deep[::-1]}
    np.testing.assert_array_equal(wide, expected[orientation])


@every_orientation
def test_shrink_to_is_the_size_of_the_turned_image(orientation: int) -> None:
    """The height and the width of `shrink_to` are swapped for an image that is turned by a quarter."""
    cell = saved(image(80, 160), Jpeg, exif_of(orientation))
    lying = (20, 10) if orientation >= 5 else (10, 20)
    plain = Jpeg(shrink_to=(10, 20)).decode(field_of(Jpeg()), memoryview(cell))

    codec = Jpeg(shrink_to=lying, orient=True)
    found = codec.decode(field_of(codec), memoryview(cell))
    out = np.zeros((1, *lying, 3), np.uint8)
    codec.decode_into(field_of(codec), blobs(cell), out)
    resized = np.zeros((1, *lying, 3), np.uint8)
    Jpeg(orient=True).decode_resized(field_of(Jpeg(orient=True)), blobs(cell), resized)

    np.testing.assert_array_equal(found, turned(plain, orientation))
    np.testing.assert_array_equal(out[0], found)
    np.testing.assert_array_equal(resized[0], found)


@every_codec
def test_the_size_of_the_field_is_that_of_the_turned_image(kind: type[Any]) -> None:
    """The shape of the field is compared with the image after it was turned."""
    cell, codec = saved(image(12, 20), kind, exif_of(6)), kind(orient=True)

    assert codec.decode(field_of(codec, 20, 12, 3), memoryview(cell)).shape == (20, 12, 3)
    assert kind().decode(field_of(kind(), 12, 20, 3), memoryview(cell)).shape == (12, 20, 3)
    message = r"it holds uint8 \(20, 12, 3\), and the schema says uint8 \(12, 20, 3\)"
    with pytest.raises(CellProblem, match=message):
        codec.decode(field_of(codec, 12, 20, 3), memoryview(cell))
    with pytest.raises(CellProblem, match=message):
        codec.decode_into(field_of(codec, 12, 20, 3), blobs(cell), np.zeros((1, 12, 20, 3), np.uint8))


@every_codec
def test_images_that_begin_alike_are_each_turned_by_their_own_orientation(kind: type[Any]) -> None:
    """The orientation of one image is not reused for the next."""
    square, codec = image(16, 16), kind(orient=True)
    cells = [saved(square, kind, exif) for exif in (None, exif_of(6), None, exif_of(3), exif_of(6), exif_of(1))]
    plain = kind().decode(field_of(kind()), memoryview(cells[0]))
    out = np.zeros((6, 16, 16, 3), np.uint8)

    codec.decode_into(field_of(codec, 16, 16, 3), blobs(*cells), out)

    np.testing.assert_array_equal(out, [turned(plain, number) for number in (1, 6, 1, 3, 6, 1)])


def test_exif_after_the_frame_header_counts() -> None:
    """A JPEG may have its EXIF data anywhere before its pixels."""
    plain = saved(image(16, 16), Jpeg, None)
    exif = exif_of(8)
    at = plain.index(b"\xff\xda")
    late = plain[:at] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + plain[at:]
    codec = Jpeg(orient=True)
    out = np.zeros((2, 16, 16, 3), np.uint8)

    codec.decode_into(field_of(codec, 16, 16, 3), blobs(plain, late), out)

    np.testing.assert_array_equal(out[1], turned(out[0], 8))


TIFFS = {
    "little": b"II*\0" + struct.pack("<IHHHIHH", 8, 1, ORIENTATION, 3, 1, 6, 0),
    "big": b"MM\0*" + struct.pack(">IHHHIHH", 8, 1, ORIENTATION, 3, 1, 6, 0),
    "after other entries": b"II*\0" + struct.pack("<IHHHIIHHIHH", 8, 2, 0x0100, 4, 1, 5, ORIENTATION, 3, 1, 6, 0),
    "far away": b"II*\0" + struct.pack("<I", 20) + bytes(12) + struct.pack("<HHHIHH", 1, ORIENTATION, 3, 1, 6, 0),
    "of four bytes": b"II*\0" + struct.pack("<IHHHII", 8, 1, ORIENTATION, 4, 1, 6),
    "of one byte": b"II*\0" + struct.pack("<IHHHII", 8, 1, ORIENTATION, 1, 1, 6),
}
NONE = {
    "nothing": b"",
    "no TIFF": b"hello world, no exif",
    "another order": b"XX*\0" + TIFFS["little"][4:],
    "no directory": b"II*\0",
    "a directory outside": b"II*\0" + struct.pack("<I", 2**32 - 1),
    "more entries than there are": b"II*\0" + struct.pack("<IH", 8, 65535),
    "an entry cut off": TIFFS["little"][:-6],
    "a value cut off": TIFFS["little"][:-4],
    "nine": b"II*\0" + struct.pack("<IHHHIHH", 8, 1, ORIENTATION, 3, 1, 9, 0),
    "zero": b"II*\0" + struct.pack("<IHHHIHH", 8, 1, ORIENTATION, 3, 1, 0, 0),
    "text": b"II*\0" + struct.pack("<IHHHIHH", 8, 1, ORIENTATION, 2, 1, 6, 0),
    "several": b"II*\0" + struct.pack("<IHHHIHH", 8, 1, ORIENTATION, 3, 2, 6, 0),
    "another tag": b"II*\0" + struct.pack("<IHHHIHH", 8, 1, 0x0113, 3, 1, 6, 0),
}


@every_codec
@pytest.mark.parametrize("exif", TIFFS.values(), ids=TIFFS)
@pytest.mark.parametrize("prefix", [b"", b"Exif\0\0"])
def test_exif_of_any_writer_is_understood(kind: type[Any], exif: bytes, prefix: bytes) -> None:
    """EXIF is read in both byte orders and with its entry at any place. JPEG's prefix is optional elsewhere."""
    codec = kind(orient=True)
    cell = with_exif(kind, (b"Exif\0\0" if kind is Jpeg else prefix) + exif)

    assert codec.decode(field_of(codec), memoryview(cell)).shape == (20, 12, 3)


@every_codec
@pytest.mark.parametrize("exif", NONE.values(), ids=NONE)
def test_damaged_exif_is_ignored(kind: type[Any], exif: bytes) -> None:
    """An image with damaged EXIF data is returned as it is stored."""
    codec = kind(orient=True)
    cell = memoryview(with_exif(kind, (b"Exif\0\0" if kind is Jpeg else b"") + exif))

    np.testing.assert_array_equal(codec.decode(field_of(codec), cell), kind().decode(field_of(kind()), cell))


def with_exif(kind: type[Any], exif: bytes) -> bytes:
    """Return an image of 12 x 20 pixels with these bytes as its EXIF data."""
    return saved(image(12, 20), Jpeg, exif) if kind is Jpeg else replace_exif(saved(image(12, 20), kind, exif_of(6)), exif)


def replace_exif(cell: bytes, exif: bytes) -> bytes:
    """Return a PNG or WebP with other EXIF data."""
    if cell.startswith(b"\x89PNG"):
        at = cell.index(b"eXIf") - 4
        end = at + 12 + int.from_bytes(cell[at : at + 4], "big")
        chunk = struct.pack(">I", len(exif)) + b"eXIf" + exif + struct.pack(">I", zlib.crc32(b"eXIf" + exif))
        return cell[:at] + chunk + cell[end:]
    at = cell.index(b"EXIF")
    end = at + 8 + int.from_bytes(cell[at + 4 : at + 8], "little")
    body = cell[8:at] + b"EXIF" + struct.pack("<I", len(exif)) + exif + bytes(len(exif) % 2) + cell[end + (end - at) % 2 :]
    return b"RIFF" + struct.pack("<I", len(body)) + body


@given(st.sampled_from(CODECS), st.binary(max_size=60) | st.sampled_from([*TIFFS.values(), *NONE.values()]), st.data())
def test_any_bytes_may_be_exif(kind: type[Any], exif: bytes, data: st.DataObject) -> None:
    """For arbitrary EXIF bytes the image is returned as it is stored, or turned."""
    changed = bytearray(exif)
    for _ in range(data.draw(st.integers(0, 3)) if exif else 0):
        changed[data.draw(st.integers(0, len(exif) - 1))] = data.draw(st.integers(0, 255))
    codec, cell = kind(orient=True), memoryview(with_exif(kind, (b"Exif\0\0" if kind is Jpeg else b"") + bytes(changed)))
    plain = kind().decode(field_of(kind()), cell)

    found = codec.decode(field_of(codec), cell)

    assert any(np.array_equal(found, turned(plain, orientation)) for orientation in EVERY)


@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_tables_return_turned_images(tmp_path: Path, kind: str, workers: Any) -> None:
    """Images are turned in rows, rows by number, resized batches and shuffled rows, by threads and processes."""
    cells = [saved(image(40, 24), Jpeg, exif_of(orientation)) for orientation in EVERY]
    plain = Jpeg().decode(field_of(Jpeg()), memoryview(cells[0]))
    schema = Schema("Photos", [Field("id", np.int64), field_of(Jpeg(orient=True))])
    ps.write(tmp_path / "t", schema, pa.table({"id": list(EVERY), "image": cells}), format=kind)

    ds = ps.open(tmp_path / "t").using(workers=workers)

    expected = {number: turned(plain, number) for number in EVERY}
    for found in (*ds, *(ds[row] for row in range(8)), *ds.shuffle(seed=1)):
        np.testing.assert_array_equal(found["image"], expected[int(found["id"])])
    small = next(iter(ds.ragged(ps.Resize(10, 6), "image").batch(8)))
    assert small["image"].shape == (8, 10, 6, 3)
    assert ds.schema["image"].codec == Jpeg(orient=True)


def test_images_of_a_plain_column_are_turned_by_an_adopted_schema(tmp_path: Path) -> None:
    """Images of existing files are turned. Their bytes stay the same, also in a copy of the table."""
    cells = [saved(image(12, 20), Jpeg, exif_of(6)), None]
    pq.write_table(pa.table({"image": cells}), tmp_path / "0.parquet")
    field = Field("image", "uint8", (20, 12, 3), Jpeg(orient=True), nullable=True)

    ps.adopt(tmp_path, Schema("Photos", [field]))
    ps.write(tmp_path.parent / "copy", data=ps.open(tmp_path))

    assert ps.open(tmp_path)[0]["image"].shape == ps.open(tmp_path.parent / "copy")[0]["image"].shape == (20, 12, 3)
    assert ps.open(tmp_path.parent / "copy").to_arrow()["image"].to_pylist() == cells


def test_images_that_are_written_again_are_not_turned_twice(tmp_path: Path) -> None:
    """An image that was turned is encoded without an orientation."""
    schema = Schema("Photos", [field_of(Jpeg(100, orient=True))])
    ps.write(tmp_path / "a", schema, pa.table({"image": [saved(image(12, 20), Jpeg, exif_of(6))]}))

    ps.write(tmp_path / "b", data=ps.open(tmp_path / "a").shuffle())

    assert ps.open(tmp_path / "b")[0]["image"].shape == (20, 12, 3)


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        (Jpeg(), '"codec": {"name": "jpeg", "quality": 80, "shrink_to": null}'),
        (Jpeg(orient=True), '"codec": {"name": "jpeg", "quality": 80, "shrink_to": null, "orient": true}'),
        (Png(), '"codec": {"name": "png", "compression": 1}'),
        (Png(orient=True), '"codec": {"name": "png", "compression": 1, "orient": true}'),
        (Webp(), '"codec": {"name": "webp", "quality": 80, "lossless": false}'),
        (Webp(orient=True), '"codec": {"name": "webp", "quality": 80, "lossless": false, "orient": true}'),
        (Avif(), '"codec": {"name": "avif", "quality": 80}'),
    ],
    ids=str,
)
def test_the_option_is_stored_only_if_it_is_set(codec: Any, text: str) -> None:
    """Without the option the text of a schema is the same as before the option existed."""
    stored = dump(Schema("S", [field_of(codec)]))

    assert stored.endswith(f"{text}}}]}}")
    assert load(stored)["image"].codec == codec
    assert repr(codec) == repr(load(stored)["image"].codec)


@every_codec
def test_the_option_is_true_or_false(kind: type[Any]) -> None:
    """Any value but a bool raises."""
    with pytest.raises(ArgumentError, match=rf"{kind.__name__}\(\) got orient=1; expected a bool"):
        kind(orient=1)

    assert repr(kind(orient=True)).endswith(", orient=True)")
    assert "orient" not in repr(kind())
