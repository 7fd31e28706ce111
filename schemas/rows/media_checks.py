"""Media in rows: the references that are allowed, how they are resolved, and checks of the files
behind them.

Relative URIs belong to the folder of the file that names them, also where that was fetched from an
address; absolute paths and http, https, s3 and gs URIs pass through unchanged and are opened with
fsspec when the bytes are needed.
"""

import io
import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_core.errors import DataError, causes
from schemas.rows.pixels import DAMAGE, as_rgb, described
from schemas.rows.problems import Problem, as_list
from schemas.rows.public_hosts import NotPublic, public_session

if TYPE_CHECKING:
    from PIL.Image import Image

REMOTE_SCHEMES = ("http", "https", "s3", "gs")
_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+):(//)?")


class Modality(StrEnum):
    """Kind of media that a reference points to."""

    IMAGE = "image"
    """A still picture that PIL can decode."""


class MediaRole(StrEnum):
    """Purpose of a media reference."""

    CONDITION = "condition"
    """Media shown to the model next to the prompt: the source of an edit, the first frame of a
    video."""
    TARGET = "target"
    """The picture that the prompt describes, for the model to learn."""


FindImage = Callable[[str], str]
"""Function that returns the resolved URI of an image as a row names it. Raises: DataError."""

MAX_FORMS = 3**6
"""Forms of one path that are tried."""
SUPPORTED = ((Modality.IMAGE, MediaRole.CONDITION), (Modality.IMAGE, MediaRole.TARGET))
"""Pairs of modality and role that the loaders implement."""


@dataclass(frozen=True)
class MediaLimits:
    """Size limits of a media file; a header that declares more is refused before anything is
    decoded."""

    max_bytes: int = 64 * 2**20
    max_pixels: int = 64_000_000
    check_remote: bool = False
    """Fetch and check http, https, s3 and gs references too; otherwise they are accepted
    unchecked."""


@dataclass(frozen=True)
class MediaRef:
    """A media reference of a row, with its URI resolved."""

    modality: str
    role: str
    uri: str


def is_remote(uri: str) -> bool:
    """Return True if a URI points outside this machine."""
    match = _SCHEME.match(uri)
    return match is not None and match[1].lower() in REMOTE_SCHEMES


def uri_problems(field: str, uri: object) -> list[Problem]:
    """Return every problem of a URI as written in the row."""
    expected = f"a path, or a URI with {', '.join(scheme + '://' for scheme in REMOTE_SCHEMES)}"
    if not isinstance(uri, str) or not uri.strip() or "\0" in uri:
        return [Problem(field, "not a URI", uri, expected)]
    scheme = _SCHEME.match(uri)
    if scheme and scheme[1].lower() not in (*REMOTE_SCHEMES, "file"):
        return [Problem(field, "unknown URI scheme", uri, expected)]
    return []


def resolve_uri(uri: str, folder: Path | str) -> str:
    """Resolve a relative URI against `folder`; return any other URI unchanged.

    Args: folder: a path, or the address of a remote folder.
    """
    if _SCHEME.match(uri) or uri.startswith("/"):
        return uri
    if uri.startswith("~"):
        return os.path.expanduser(uri)
    if isinstance(folder, str):
        scheme, _, rest = folder.partition("://")
        return f"{scheme}://{posixpath.normpath(posixpath.join(rest, uri))}"
    return existing_form(str(folder / uri))


def unicode_forms(path: str) -> tuple[str, ...]:
    """Return a path as written, then with the letters of any of its parts composed or decomposed:
    macOS and archives made there write `e` and its accent as two characters."""
    if path.isascii():
        return (path,)
    forms = []
    for part in path.split("/"):
        forms.append(
            dict.fromkeys((part, *(unicodedata.normalize(form, part) for form in ("NFC", "NFD"))))
        )
    return tuple("/".join(parts) for parts in islice(product(*forms), MAX_FORMS))


def existing_form(path: str) -> str:
    """Return the form of a path in which there is a file, or the path itself."""
    forms = unicode_forms(path)
    if len(forms) == 1:
        return path
    return next((form for form in forms if os.path.isfile(form)), path)


def is_local_file(uri: str) -> bool:
    """Return True if there is a file behind a resolved local URI; a name that no disk takes has
    none."""
    return os.path.isfile(local_path(uri))


def local_path(uri: str) -> Path:
    """Return the path of the file behind a resolved local URI."""
    return Path(uri[len("file://") :] if uri.lower().startswith("file://") else uri)


def open_media(uri: str, max_bytes: int = MediaLimits.max_bytes) -> bytes:
    """Read the bytes behind a resolved URI.

    Raises: DataError when it cannot be opened, is larger than `max_bytes`, or when an http address
    leads to a machine that is neither public nor named (`public_hosts.py`).
    """
    import fsspec

    options: dict[str, Any] = (
        {"get_client": public_session} if uri.lower().startswith("http") else {}
    )
    try:
        with fsspec.open(lower_scheme(uri), "rb", **options) as file:
            content: bytes = file.read(max_bytes + 1)  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError as error:
        raise DataError(f"{uri}: {error}") from error
    # Each remote filesystem raises what it likes for a missing object or a refused login.
    except Exception as error:
        refused = next((one for one in causes(error) if isinstance(one, NotPublic)), None)
        reason = f"{type(error).__name__}: {error}" if refused is None else str(refused)
        raise DataError(f"{uri}: cannot be opened: {reason}") from error
    if len(content) > max_bytes:
        raise DataError(f"{uri}: more than {max_bytes} bytes")
    return content


def load_image(source: str | bytes, limits: MediaLimits | None = None) -> "Image":
    """Decode the RGB image behind a resolved URI, or in the given bytes (`pixels.py` says how).

    Raises: DataError when it cannot be opened or decoded, or exceeds the limits.
    """
    from PIL import Image

    limits = limits or MediaLimits()
    name = f"{len(source)} bytes" if isinstance(source, bytes) else source
    content = source if isinstance(source, bytes) else open_media(source, limits.max_bytes)
    if len(content) > limits.max_bytes:
        raise DataError(f"{name}: more than {limits.max_bytes} bytes")
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > limits.max_pixels:
                raise DataError(
                    f"{name}: {image.width} x {image.height} is more than {limits.max_pixels} "
                    "pixels"
                )
            return as_rgb(image)
    except Image.DecompressionBombError as error:
        raise DataError(f"{name}: {error}") from error
    except DAMAGE as error:
        raise DataError(f"{name}: not a readable image ({described(error)})") from error


def media_type(content: bytes) -> str:
    """Return the media type of an image file's bytes, such as `image/png`. Raises: DataError."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.get_format_mimetype() or f"image/{str(image.format).lower()}"
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise DataError(f"{len(content)} bytes: not a readable image ({error})") from error


def file_problems(field: str, uri: str, limits: MediaLimits) -> list[Problem]:
    """Report a file behind a resolved URI that is missing, cannot be decoded or exceeds the
    limits."""
    if is_remote(uri) and not limits.check_remote:
        return []
    if not is_remote(uri) and not is_local_file(uri):
        return [Problem(field, "no such media file", uri, "the path of an existing file")]
    try:
        load_image(uri, limits)
    except DataError as error:
        said = str(error).removeprefix(f"{uri}: ")
        reason = "media too large" if "more than" in said else "not a readable image"
        return [
            Problem(field, reason, f"{uri}: {said}", "an image that decodes, within the limits")
        ]
    return []


def embedded_image_problems(
    value: object, find: FindImage | None = None, limits: MediaLimits | None = None
) -> list[Problem]:
    """Return every problem of an `images` column of `{bytes, path}` (MMPR-Tiny) or paths; None
    means no images.

    Args: find: resolves paths, whose files are then opened; unset opens none.
    """
    if value is None:
        return []
    images = as_list(value)
    if images is None:
        return [Problem("images", "not a list of images", value, "a list of {bytes, path}")]
    problems: list[Problem] = []
    for i, image in enumerate(images):
        problems.extend(_one_image(f"images[{i}]", image, find, limits or MediaLimits()))
    return problems


def _one_image(
    field: str, image: object, find: FindImage | None, limits: MediaLimits
) -> list[Problem]:
    if isinstance(image, str):
        return _named_image(field, image, find, limits)
    content = image.get("bytes") if isinstance(image, Mapping) else None
    if content is None:
        path = image.get("path") if isinstance(image, Mapping) else None
        if path:
            return _named_image(f"{field}.path", path, find, limits)
        return [Problem(field, "no image", image, "bytes or a path")]
    expected = "the bytes of an image file"
    if not isinstance(content, bytes):
        return [Problem(f"{field}.bytes", "not a readable image", content, expected)]
    try:
        load_image(content, limits)
    except DataError as error:
        return [Problem(f"{field}.bytes", "not a readable image", str(error), expected)]
    return []


def _named_image(
    field: str, path: object, find: FindImage | None, limits: MediaLimits
) -> list[Problem]:
    problems = uri_problems(field, path)
    if problems or find is None or not isinstance(path, str):
        return problems
    try:
        return file_problems(field, find(path), limits)
    except DataError as error:
        return [Problem(field, "no such media file", path, str(error))]


def lower_scheme(uri: str) -> str:
    """Return a URI with its scheme in the lower case that fsspec knows."""
    match = _SCHEME.match(uri)
    if match is None:
        return uri
    return match[0].lower() + uri[match.end() :]
