"""Images of prompt rows: `images`, a list of `{bytes, path}` (MMPR-Tiny) or paths.

Preparation converts each to a text that a prepared row can hold: a path or URI that no longer
depends on a folder, or the file's own bytes in base64.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.data.order.vision_dataset import IMAGES, cache_path
from rl_core.data.read.remote import base_of
from rl_core.errors import DataError
from schemas.rows.media_checks import (
    existing_form,
    is_local_file,
    is_remote,
    load_image,
    open_media,
    resolve_uri,
)

if TYPE_CHECKING:
    from PIL.Image import Image

BASE64 = "data:;base64,"


def placed_images(images: Sequence[object], file: Path | str, place: str) -> list[str]:
    """Return the images of a row of `file` as text.

    Raises: DataError, naming `place`, when there is neither bytes nor a path, or no such file.
    """
    folder = base_of(Path(file))
    placed: list[str] = []
    for index, image in enumerate(images):
        placed.append(_placed(image, folder, f"{place} field images[{index}]"))
    return placed


def located_image(path: str, folder: Path | str) -> str:
    """Return where the image is that a row names; in a published vision cache, paths lead below
    `MMPR-Tiny/images`.

    Args: folder: the folder or address of the row's file. Raises: DataError when the path leads out
    of a cache.
    """
    if isinstance(folder, Path) and not is_remote(path) and (folder / IMAGES).is_dir():
        return existing_form(str(folder / cache_path(path)))
    return resolve_uri(path, folder)


def image_identity(image: object) -> str:
    """Return the identity of an image as written: the digest of its bytes, or its path."""
    content = image.get("bytes") if isinstance(image, Mapping) else None
    if isinstance(content, bytes) and content:
        return hashlib.sha256(content).hexdigest()
    return str(image.get("path") if isinstance(image, Mapping) else image)


def open_image(image: str) -> "Image":
    """Decode the RGB image behind a result of `placed_images`. Raises: DataError."""
    return load_image(image_bytes(image) if image.startswith(BASE64) else image)


def image_bytes(image: str) -> bytes:
    """Return the file's bytes behind a result of `placed_images`. Raises: DataError."""
    if not image.startswith(BASE64):
        return open_media(image)
    try:
        return base64.b64decode(image.removeprefix(BASE64))
    except ValueError as error:
        raise DataError(f"{image[:40]}...: not the base64 of a picture ({error})") from error


def _placed(image: object, folder: Path | str, where: str) -> str:
    content = image.get("bytes") if isinstance(image, Mapping) else None
    if isinstance(content, bytes) and content:
        return BASE64 + base64.b64encode(content).decode()
    path = image.get("path") if isinstance(image, Mapping) else image
    if not isinstance(path, str) or not path.strip():
        raise DataError(f"{where}: neither bytes nor a path")
    found = located_image(path, folder)
    if not is_remote(found) and not is_local_file(found):
        raise DataError(f"{where}: no file {found}")
    return found
