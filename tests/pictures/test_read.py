"""One picture of every kind, and what is no picture."""

import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from regard._problem import Problem
from regard.pictures import read


def saved(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_colours_and_axes():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert torch.equal(read(saved(Image.fromarray(pixels))), torch.from_numpy(pixels).permute(2, 0, 1))


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("L", (2, 2), 80), (80, 80, 80)),
        (Image.new("1", (2, 2), 1), (255, 255, 255)),
        (Image.new("RGB", (2, 2), (200, 30, 60)).convert("P"), None),
        (Image.new("RGBA", (2, 2), (255, 0, 0, 0)), (255, 255, 255)),
        (Image.new("RGBA", (2, 2), (0, 0, 0, 128)), (127, 127, 127)),
        (Image.new("LA", (2, 2), (0, 0)), (255, 255, 255)),
        (Image.fromarray(np.full((2, 2), 257 * 40, np.uint16)), (40, 40, 40)),
    ],
)
def test_modes_of_png(image, expected):
    expected = expected or image.convert("RGB").getpixel((0, 0))
    assert read(saved(image))[:, 0, 0].tolist() == list(expected)


def test_palette_with_a_transparent_colour():
    image = Image.new("P", (2, 2), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    assert read(saved(image, transparency=1))[:, 0, 0].tolist() == [255, 255, 255]
    assert read(saved(image, transparency=0))[:, 0, 0].tolist() == [10, 20, 30]


def test_cmyk_and_floats():
    ink = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    red = read(saved(ink, "JPEG", quality=100))[:, 4, 4]
    assert red[0] > 240
    assert red[1:].max() < 15
    half = read(saved(Image.fromarray(np.full((2, 2), 0.5, np.float32)), "TIFF"))
    assert half.unique().tolist() == [128]
    whole = read(saved(Image.fromarray(np.full((2, 2), 257 * 40, np.int32)), "TIFF"))
    assert whole.unique().tolist() == [40]


def test_exif_turns_the_picture():
    image = Image.new("RGB", (16, 8))
    image.paste((255, 255, 255), (0, 0, 8, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the left half is the top
    turned = read(saved(image, "JPEG", exif=exif, quality=100))
    assert turned.shape == (3, 16, 8)
    assert turned[:, :7].min() > 240
    assert turned[:, 9:].max() < 15


def test_first_frame_of_an_animation():
    frames = [Image.new("P", (2, 2), i) for i in (0, 1)]
    assert read(saved(frames[0], "GIF", save_all=True, append_images=frames[1:])).shape == (3, 2, 2)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF"])
def test_truncated_files_are_named(tmp_path, kind):
    whole = saved(Image.effect_noise((64, 64), 90).convert("RGB"), kind)
    path = tmp_path / "half.img"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Problem, match=r"half\.img"):
        read(path)


def test_what_is_no_picture(tmp_path):
    (tmp_path / "notes.png").write_text("milk, bread")
    (tmp_path / "empty.png").touch()
    for name in ("notes.png", "empty.png", "gone.png"):
        with pytest.raises(Problem, match=name) as problem:
            read(tmp_path / name)
        assert "\n" not in str(problem.value)
    with pytest.raises(Problem, match="11 bytes"):
        read(b"milk, bread")


def test_a_picture_that_claims_to_be_huge():
    with pytest.raises(Problem, match="more than 99"):
        read(saved(Image.new("L", (10, 10))), max_pixels=99)


def test_a_picture_that_is_squeezed_is_worth_a_warning(tmp_path):
    from regard.pictures import squeezed

    for name, size in (("square.png", (8, 8)), ("wide.png", (31, 10)), ("tall.jpg", (9, 90)), ("three.png", (30, 10))):
        Image.new("RGB", size).save(tmp_path / name)
    (tmp_path / "bad.png").write_bytes(b"no picture")
    warning = squeezed(sorted(tmp_path.iterdir()))
    assert warning.startswith("2 of 5 pictures are squeezed")
    assert "beyond 3:1, at worst 9 x 90 (tall.jpg)" in warning
    assert squeezed([tmp_path / "square.png", tmp_path / "bad.png"]) is None


@pytest.mark.parametrize("mode", ["I;16", "RGBA", "L", "I", "F"])
def test_rows_are_converted_a_few_at_a_time(mode, monkeypatch):
    values = np.arange(7 * 5, dtype=np.float32).reshape(7, 5)
    pictures = {
        "I;16": Image.fromarray((values * 1500).astype(np.uint16)),
        "RGBA": Image.fromarray(np.stack([values * 7] * 4, -1).astype(np.uint8), "RGBA"),
        "L": Image.fromarray((values * 7).astype(np.uint8)),
        "I": Image.fromarray((values * 100_000).astype(np.int32)),
        "F": Image.fromarray(values / 34),
    }
    picture = saved(pictures[mode], "TIFF")
    whole = read(picture)
    monkeypatch.setattr("regard.pictures._read.STRIP_PIXELS", 10)
    assert torch.equal(read(picture), whole)


def test_a_large_picture_of_16_bits_takes_little_more_memory_than_its_pixels(tmp_path):
    """Some kilobytes can hold 25 million pixels: 50 MB as they are, 75 MB as RGB; 700 MB if converted at once."""
    path = tmp_path / "grey.png"
    Image.fromarray(np.zeros((5000, 5000), np.uint16)).save(path)
    assert path.stat().st_size < 100_000
    code = (
        "import resource, sys; from regard.pictures import read; read(sys.argv[1], max_pixels=1 << 30);"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; read(sys.argv[2], max_pixels=1 << 30);"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    small = tmp_path / "small.png"
    Image.fromarray(np.zeros((1100, 1100), np.uint16)).save(small)
    done = subprocess.run([sys.executable, "-c", code, small, path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 250


def test_other_formats_under_the_name_of_a_picture_are_not_opened(tmp_path, monkeypatch):
    """EPS would start Ghostscript: its decoder must not even be asked."""
    from PIL import EpsImagePlugin

    def started(*arguments, **options):
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", started)
    path = tmp_path / "drawing.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n")
    with Image.open(path) as image:  # Pillow alone takes it for what it is
        assert image.format == "EPS"
    with pytest.raises(Problem, match=r"drawing\.png"):
        read(path)


@pytest.mark.parametrize("mode", ["I;16", "L", "RGB"])
def test_the_limit_of_pixels_holds_before_anything_is_decoded(tmp_path, monkeypatch, mode):
    """192 kB of a PNG of 16 bits cost 2.9 GB."""
    from PIL import ImageFile

    def decoded(self):
        raise AssertionError("decoded")

    path = tmp_path / "bomb.png"
    Image.new(mode, (3000, 3000)).save(path)
    monkeypatch.setattr(ImageFile.ImageFile, "load", decoded)
    with pytest.raises(Problem, match=r"9000000|9,000,000|more than"):
        read(path, max_pixels=1_000_000)
