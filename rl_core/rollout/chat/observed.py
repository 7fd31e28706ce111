"""Parts of the messages of environments and of clients: texts and pictures.

A picture is `{"type": "image", "image": …}` or, as OpenAI's API has it, `{"type": "image_url",
"image_url": {"url": …}}`: the path of a file, or `data:image/png;base64,…`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence

from rl_core.data.prepare.chat_template import Message
from rl_core.data.read.row_images import BASE64, image_bytes
from rl_core.envs.tool_env.result import Part, picture_of
from rl_core.errors import DataError
from schemas.rows.media_checks import media_type

TEXT, IMAGE, IMAGE_URL = "text", "image", "image_url"


def parts_of(message: Message) -> Iterator[tuple[str, str]]:
    """Yield the parts of a message, as `text` and the text, or as `image` and what `open_image`
    takes.

    Raises: DataError on a part that is neither.
    """
    content = message.get("content")
    if isinstance(content, str) or content is None:
        yield TEXT, content or ""
        return
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == TEXT:
            yield TEXT, str(part.get(TEXT) or "")
            continue
        value = part.get(kind) if kind in (IMAGE, IMAGE_URL) else None
        if kind == IMAGE_URL and isinstance(value, Mapping):
            value = value.get("url")
        if not isinstance(value, str) or not value:
            raise DataError(
                f"an observation of role {message.get('role')} holds {_shown(part)}; a part is "
                '{"type": "text", "text": …} or {"type": "image", "image": …} with the path of a '
                "file or data:image/png;base64,…"
            )
        yield IMAGE, _opened_by(value)


def shown_pictures(messages: Sequence[Message]) -> list[str]:
    """Return the pictures of messages in their order, as `open_image` takes them."""
    return [value for message in messages for kind, value in parts_of(message) if kind == IMAGE]


def part_of(image: str) -> Part:
    """Return the part of OpenAI's API that shows what `open_image` takes, with its bytes.

    Raises: DataError when it cannot be opened.
    """
    content = image_bytes(image)
    try:
        return picture_of(base64.b64encode(content).decode(), media_type(content))
    except DataError as error:
        raise DataError(f"{image[:80]}: {error}") from error


def _opened_by(value: str) -> str:
    head, mark, content = value.partition(";base64,")
    return BASE64 + content if mark and head.startswith("data:") else value


def _shown(part: object) -> str:
    if isinstance(part, Mapping):
        return f"a part of type {part.get('type')!r} that cannot be read"
    return repr(part)[:80]
