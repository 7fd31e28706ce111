"""Conversion of a picture file to RGB, the same for preparation, checks and training.

* A photograph is turned as its EXIF orientation says.
* Transparency stands on white, as a page shows it. transformers and diffusers drop the alpha
  channel, which turns black strokes on a clear ground into black on black.
* 16-bit grey is scaled to 8 bits, which those libraries clip to white. Floats and whole numbers
  beyond 16 bits are refused, since nothing says which value is white.
* Palettes, CMYK and YCbCr become RGB as those libraries have it.
* Of an animation, the first frame is the picture.
* Bytes after the end (motion photos, padding) do not matter; a file that ends too early is refused.
"""

import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image, Transpose

WHITE = (255, 255, 255, 255)
_ORIENTATION, _UPRIGHT = 0x0112, 1
_DEPTH = 2**16 - 1
_WIDE = ("I", "I;16", "I;16B", "I;16L", "I;16N")
DAMAGE = (
    *(OSError, SyntaxError, ValueError, EOFError, NotImplementedError),
    *(IndexError, KeyError, TypeError, OverflowError, struct.error, zlib.error),
)
"""Errors by which PIL's readers say that a file is damaged or of a kind they do not read."""


def as_rgb(image: "Image") -> "Image":
    """Return the RGB picture of an opened file. Raises: one of `DAMAGE` when it cannot be read, or
    its pixels have no scale."""
    from PIL import Image

    if image.mode == "F":
        raise ValueError("its pixels are floats, and nothing says which is white; save it as 8 bit")
    turn = _turn(image)
    if image.mode in _WIDE:
        image = _eight_bit(image)
    elif image.has_transparency_data:
        page = Image.new("RGBA", image.size, WHITE)
        image = Image.alpha_composite(page, image.convert("RGBA"))
    rgb = image.convert("RGB")
    if turn is None:
        return rgb
    return rgb.transpose(turn)


def described(error: Exception) -> str:
    """Return what PIL says of a damaged file, without addresses in memory."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "the bytes are of no image format that is known"
    return str(error).strip()[:80] or type(error).__name__


def is_read_specially(path: Path) -> bool:
    """Return True if the header of a file says that it is read otherwise than by a plain conversion
    to RGB and a turn: it has transparency, or more than 8 bits."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.mode in (*_WIDE, "F") or image.has_transparency_data
    except (*DAMAGE, Image.DecompressionBombError):
        return False


def _turn(image: "Image") -> "Transpose | None":
    """Return what brings a picture upright according to its EXIF notes; None if it is."""
    from PIL.Image import Transpose

    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            orientation = image.getexif().get(_ORIENTATION, _UPRIGHT)
    except DAMAGE:
        return None  # damaged notes do not damage the picture
    return {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }.get(orientation)


def _eight_bit(image: "Image") -> "Image":
    """Scale whole numbers of 16 bits to 8. Raises: ValueError beyond 16 bits."""
    import numpy
    from PIL import Image

    values = numpy.asarray(image).astype(numpy.int64)
    if values.size and (values.min() < 0 or values.max() > _DEPTH):
        raise ValueError("its pixels have more than 16 bits, and nothing says which is white")
    return Image.fromarray(numpy.round(values / 257).astype(numpy.uint8))
