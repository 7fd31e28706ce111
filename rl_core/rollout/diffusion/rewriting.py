"""Prompts of the two models of a prompt enhancer: the language model's question, and the diffusion
model's prompt."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rl_core.data.prepare.items import MediaItem, PlayedItem
from rl_core.data.prepare.tokenizer import Tokenizer
from schemas.sections.tracks import Asking, ImagesTrack

ENV_CLASS = "rewrite"


def question(item: MediaItem, track: Asking) -> PlayedItem:
    """Return the row of a text rollout that asks for a rewrite, or a plan.

    Args: item: a prompt row, `{"prompt", "uid", "metadata"}`.
    """
    messages = [{"role": "system", "content": track.system}] if track.system else []
    for example in track.examples:
        messages += _turn(track, example.prompt), {"role": "assistant", "content": example.rewrite}
    return {
        "uid": item["uid"],
        "prompt": [*messages, _turn(track, item["prompt"])],
        "env_class": ENV_CLASS,
        "env_extras": {"reward_spec": {"ground_truth": dict(item.get("metadata") or {})}},
    }


def drawn_prompt(rewrite: str, track: ImagesTrack) -> str:
    """Return the diffusion model's prompt; a rewrite is one line."""
    return track.template.replace("{rewrite}", " ".join(rewrite.split()))


def drawing(item: MediaItem, uid: str, prompt: str) -> MediaItem:
    """Return the row of an image rollout that draws `prompt` for `item`.

    Args: uid: uid of the row that it is drawn for.
    """
    return {
        "uid": uid,
        "prompt": prompt,
        "asked": item["prompt"],
        "metadata": dict(item.get("metadata") or {}),
    }


class QuestionLengths:
    """Counts tokens of prompts with the language model's tokenizer, without the text that the
    recipe puts around them."""

    limit = sys.maxsize

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text."""
        return [len(ids) for ids in self.tokenizer(list(texts), verbose=False)["input_ids"]]


def _turn(track: Asking, prompt: str) -> dict[str, str]:
    # Not `format`: a prompt may hold braces.
    return {"role": "user", "content": track.template.replace("{prompt}", prompt)}
