"""The quick word on an image is never milder than PIL's."""

import io
import random

import pytest
from PIL import Image

from rl_core.data.check.image_structure import plain_image_size
from rl_core.data.check.images import _problem, image_problem

SIZE = (37, 23)


def picture(kind: str, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    noise = random.Random(0).randbytes(SIZE[0] * SIZE[1] * len(mode.replace("P", "L")))
    Image.frombytes(mode, SIZE, noise).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_a_plain_png_needs_no_decoder(mode: str) -> None:
    assert plain_image_size(picture("PNG", mode)) == SIZE


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 95, "subsampling": 0}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_plain_jpeg_needs_no_decoder(mode: str, options: dict[str, object]) -> None:
    assert plain_image_size(picture("JPEG", mode, **options)) == SIZE


@pytest.mark.parametrize(
    "content", [b"", b"GIF89a", picture("BMP"), picture("JPEG", exif=b"Exif\0\0" + bytes(8))]
)
def test_anything_else_is_left_to_the_decoder(content: bytes) -> None:
    assert plain_image_size(content) is None


@pytest.mark.parametrize("content", [picture("PNG"), picture("JPEG")], ids=["png", "jpeg"])
def test_whatever_is_damaged_passes_only_if_pil_lets_it_pass(content: bytes) -> None:
    rng = random.Random(1)
    damaged = [content[:keep] for keep in range(0, len(content), 7)]
    for _ in range(400):
        # Most of the structure lies at the start.
        place = rng.randrange(len(content) if rng.random() < 0.3 else min(700, len(content)))
        damaged.append(content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :])
    passed = [one for one in damaged if plain_image_size(one) is not None]
    assert [one for one in passed if _problem(one, decode=False) is not None] == []
    assert all(
        image_problem(content[:keep], decode=False) for keep in range(0, len(content) - 1, 7)
    )
