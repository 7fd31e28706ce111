"""A picture is what its pixels mean, as transformers and diffusers load it; where they lose it, it
is kept or refused."""

import io
import struct

import numpy
import pytest
from diffusers.utils import load_image as load_as_diffusers
from PIL import Image
from transformers.image_utils import load_image as load_as_transformers

from rl_core.data.check.images import image_problem
from rl_core.errors import DataError
from schemas.rows.media_checks import load_image

SIZE = (48, 32)


def gradient(mode: str = "RGB") -> Image.Image:
    """A picture whose corners differ."""
    across, down = numpy.meshgrid(numpy.linspace(0, 255, SIZE[0]), numpy.linspace(0, 255, SIZE[1]))
    channels = numpy.stack([across, down, 255 - across], axis=-1).astype(numpy.uint8)
    return Image.fromarray(channels).convert(mode)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(gradient(), "JPEG", exif=exif)


SAME = {
    **{f"orientation {number}": turned(number) for number in range(1, 9)},
    "png": saved(gradient(), "PNG"),
    "grey": saved(gradient("L"), "PNG"),
    "one bit": saved(gradient("1"), "PNG"),
    "palette": saved(gradient("P"), "PNG"),
    "opaque alpha": saved(gradient("RGBA"), "PNG"),
    "cmyk": saved(gradient("CMYK"), "JPEG"),
    "cmyk tiff": saved(gradient("CMYK"), "TIFF"),
    "ycbcr": saved(gradient("YCbCr"), "JPEG"),
    "animated": saved(gradient(), "GIF", save_all=True, append_images=[gradient("L")]),
    "webp": saved(gradient(), "WEBP", lossless=True),
    "trailing bytes": saved(gradient(), "JPEG") + b"\0\0\0\x18ftypmp42 a film",
    "padded": saved(gradient(), "JPEG") + bytes(99),
    "damaged notes": saved(gradient(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"),
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # from the other two
@pytest.mark.parametrize("name", SAME)
def test_it_is_the_picture_that_transformers_and_diffusers_load(name: str):
    ours = load_image(SAME[name])
    assert ours.mode == "RGB"
    for theirs in (load_as_transformers, load_as_diffusers):
        # Opened here, since neither closes the file of an animation.
        image = theirs(Image.open(io.BytesIO(SAME[name]))).convert("RGB")
        assert (ours.size, ours.tobytes()) == (image.size, image.tobytes())
    assert image_problem(SAME[name], decode=False) is None
    assert image_problem(SAME[name], decode=True) is None


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode: str):
    image = Image.new("RGBA", SIZE, (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (10, 10, 20, 20))
    loaded = load_image(saved(image.convert(mode), "PNG"))
    assert loaded.getpixel((15, 15)) == (0, 0, 0)
    assert loaded.getpixel((0, 0)) == (255, 255, 255)


def test_a_transparent_picture_is_turned_too():
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.new("RGBA", SIZE, (0, 0, 0, 0))
    assert load_image(saved(image, "PNG", exif=exif)).size == SIZE[::-1]


def test_sixteen_bits_are_scaled():
    values = numpy.array([[0, 257 * 128, 65535]], numpy.uint16)
    for kind in ("PNG", "TIFF"):
        loaded = load_image(saved(Image.fromarray(values), kind))
        assert [loaded.getpixel((x, 0))[0] for x in range(3)] == [0, 128, 255]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (numpy.array([[0.5]], numpy.float32), "its pixels are floats"),
        (numpy.array([[70_000]], numpy.int32), "more than 16 bits"),
    ],
)
def test_pixels_without_a_scale_are_refused(values: numpy.ndarray, said: str):
    content = saved(Image.fromarray(values), "TIFF")
    with pytest.raises(DataError, match=said):
        load_image(content)
    assert said in str(image_problem(content, decode=True))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no picture",
        turned(6)[:-200],
        saved(gradient(), "PNG")[:-40],
        saved(gradient(), "PNG")[:20],
        b"\xff\xd8\xff\xe1" + struct.pack(">H", 9),
    ],
)
def test_what_is_damaged_is_refused_in_words(content: bytes):
    with pytest.raises(DataError) as caught:
        load_image(content)
    problem = image_problem(content, decode=False)
    assert problem is not None
    assert " at 0x" not in f"{caught.value} {problem}"
