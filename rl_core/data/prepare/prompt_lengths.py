"""Token counts of prompts under the rollout's own chat template, computed in batches on all cores.

Counts are cached by content: tokenizer, template, its arguments and the messages; never by file
name. For a file that grew by some rows, or a new length limit, only the new rows' batches are
counted.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rl_core.data.prepare.chat_template import ChatTemplate
from rl_core.data.prepare.items import PromptItem
from rl_core.data.prepare.parallel import ordered_map
from rl_core.data.prepare.prompt_items import to_json
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.data.store.atomic import storage_error
from rl_core.envs.tool_env.offer import TOOLS
from rl_core.errors import DataError, EnvError

BATCH = 1024
COUNTING_VERSION = "2"
"""Version of the counting, raised whenever the same prompts would be counted differently."""
PARTED = b"control tokens are text"
"""Part of the key of prompts with control tokens, which were once counted as such."""
CountItems = Callable[[Sequence[PromptItem], Mapping[str, object]], list[int]]
MAX_BATCH_CHARACTERS = 8 * 2**20


class LengthCounter:
    """Counter of prompt tokens.

    Args: tokenizer: one with a method `count_items(items, template_kwargs)` counts by itself, since
    images take tokens too; with `why_no_images`, rows with images are refused with that text.
    template_kwargs: the rollout's arguments of the chat template. num_workers: threads; 0 means all
    cores. The tokenizer works outside the interpreter lock. cache_dir: folder of the counts; None
    keeps none. offer: returns an item as its model reads it, with the tools of its environment;
    unset reads items as they are.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template_kwargs: Mapping[str, object] | None = None,
        *,
        num_workers: int = 0,
        cache_dir: Path | None = None,
        offer: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self.template = ChatTemplate(tokenizer, self.template_kwargs)
        self.num_workers = num_workers
        self.cache_dir = cache_dir
        self.offer = offer
        self.why_no_images: str | None = getattr(tokenizer, "why_no_images", None)
        self.count_by_itself: CountItems | None = getattr(tokenizer, "count_items", None)
        self.num_counted = 0
        """Number of prompts that were not found in the cache."""
        # Padding and truncation left over from another user are reset here, not while threads are
        # encoding.
        tokenizer("", add_special_tokens=False)
        self._key = _tokenizer_key(tokenizer, self.template_kwargs) if cache_dir else b""

    def lengths(self, items: Sequence[PromptItem], places: Sequence[str]) -> list[int]:
        """Return the tokens of each item's templated prompt, as the rollout encodes it.

        Raises: DataError when the chat template refuses a prompt, or it contains media that the
        model does not support, naming its place.
        """
        if self.why_no_images is not None:
            for item, place in zip(items, places, strict=True):
                if item.get("env_extras", {}).get("images"):
                    raise DataError(f"{place}: {self.why_no_images}")
        if self.offer is not None:
            items = [_offered(self.offer, *one) for one in zip(items, places, strict=True)]
        batches = ordered_map(self._batch, _batches(items, places), self.num_workers)
        return [length for batch in batches for length in batch]

    def _batch(self, batch: tuple[Sequence[PromptItem], Sequence[str]]) -> list[int]:
        import numpy as np

        items, places = batch
        if self.cache_dir is None:
            return self._count(items, places)
        tokens = self.template.control_tokens
        parted = any(tokens.in_message(one) for item in items for one in item["prompt"])
        key = self._key + (PARTED if parted else b"")
        digest = hashlib.sha256(
            key + to_json([_shown(item) for item in items], places[0]).encode()
        ).hexdigest()
        path = self.cache_dir / digest[:2] / f"{digest}.npy"
        try:
            known = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            known = None
        if known is not None and known.shape == (len(items),):
            return known.tolist()
        counted = self._count(items, places)
        _save(path, np.asarray(counted, dtype=np.int32))
        return counted

    def _count(self, items: Sequence[PromptItem], places: Sequence[str]) -> list[int]:
        self.num_counted += len(items)
        if self.count_by_itself is not None:
            return self._counted_by_itself(self.count_by_itself, items, places)
        texts = self._render(items, places)
        encoded = self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
        return [len(ids) for ids in encoded["input_ids"]]

    def _counted_by_itself(
        self, count: CountItems, items: Sequence[PromptItem], places: Sequence[str]
    ) -> list[int]:
        lengths = []
        for item, place in zip(items, places, strict=True):
            try:
                lengths += count([item], self.template_kwargs)
            # Templates and image libraries raise what they like; only here is the row known.
            except Exception as error:
                raise DataError(f"{place}: {error}") from error
        return lengths

    def _render(self, items: Sequence[PromptItem], places: Sequence[str]) -> list[str]:
        texts = []
        for item, place in zip(items, places, strict=True):
            try:
                texts.append(self.template.prompt(item["prompt"], item.get(TOOLS, ())))
            # Templates run as Jinja and raise what they like; only here is the row known.
            except Exception as error:
                raise DataError(
                    f"{place} field prompt: the tokenizer's chat template refuses it: {error}"
                ) from error
        return texts


def _shown(item: PromptItem) -> object:
    images = item.get("env_extras", {}).get("images")
    if tools := item.get(TOOLS):
        return {"prompt": item["prompt"], "images": images, TOOLS: tools}
    if images:
        return [item["prompt"], images]
    return item["prompt"]


def _offered(
    offer: Callable[[Mapping[str, Any]], Mapping[str, Any]], item: PromptItem, place: str
) -> PromptItem:
    try:
        # Other words and tools, the same keys.
        return cast(PromptItem, offer(item))
    except EnvError as error:
        raise DataError(f"{place}: {error}") from error


def _batches(
    items: Sequence[PromptItem], places: Sequence[str]
) -> Iterator[tuple[Sequence[PromptItem], Sequence[str]]]:
    """Yield batches of at most `BATCH` prompts and about `MAX_BATCH_CHARACTERS` characters."""
    start = size = 0
    for end, item in enumerate(items, start=1):
        size += sum(len(str(message.get("content"))) for message in item["prompt"])
        if end - start == BATCH or size >= MAX_BATCH_CHARACTERS or end == len(items):
            yield items[start:end], places[start:end]
            start, size = end, 0


def _tokenizer_key(tokenizer: Tokenizer, template_kwargs: Mapping[str, object]) -> bytes:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        vocabulary = backend.to_str()
    else:
        vocabulary = to_json(tokenizer.get_vocab(), "tokenizer")
    parts = [
        COUNTING_VERSION,
        vocabulary,
        str(tokenizer.chat_template),
        to_json(dict(template_kwargs), "template_kwargs"),
    ]
    return hashlib.sha256("\0".join(parts).encode()).digest()


def _save(path: Path, lengths: Any) -> None:
    import uuid

    import numpy as np

    building = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with building.open("wb") as file:
            np.save(file, lengths, allow_pickle=False)
        building.replace(path)
    except OSError as error:
        building.unlink(missing_ok=True)
        raise storage_error(path, error) from error
