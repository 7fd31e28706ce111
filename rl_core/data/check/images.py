"""Check that a file is an image that a training run can read: by its structure, or by decoding
every pixel."""

import io
import warnings
from pathlib import Path

from rl_core.data.check.image_structure import plain_image_size
from schemas.rows.pixels import DAMAGE, as_rgb, described

MAX_PIXELS = 64_000_000


def image_problem(source: bytes | Path, *, decode: bool) -> str | None:
    """Return the reason why `source` is not a readable image, or None if it is one.

    Args: decode: decode every pixel; otherwise check header, size, checksums (PNG) and the end of
    the file (JPEG).
    """
    content = source if isinstance(source, bytes) else source.read_bytes()
    if not decode and (size := plain_image_size(content)) and size[0] * size[1] <= MAX_PIXELS:
        return None
    return _problem(content, decode)


def _problem(content: bytes, decode: bool) -> str | None:
    """Return the problem that PIL finds."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content)) as image:
                if image.width * image.height > MAX_PIXELS:
                    return f"{image.width} x {image.height} is more than {MAX_PIXELS} pixels"
                kind = image.format
                if decode:
                    as_rgb(image)
                    return None
                image.verify()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        return str(error)
    except DAMAGE as error:
        return f"not a readable image ({type(error).__name__}: {described(error)})"
    # PIL's verify reads no more of a JPEG than its header. Behind a picture that is complete there
    # may be anything, such as the film of a motion photo.
    goes_on = not content.rstrip(b"\0").endswith(b"\xff\xd9")
    if kind in ("JPEG", "MPO") and goes_on and _problem(content, decode=True):
        return "a truncated JPEG"
    return None
