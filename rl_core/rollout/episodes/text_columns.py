"""Object columns of a rollout: the texts of its rows, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rl_core.envs.answers import answer_read
from rl_core.models.media import tensors_alone
from rl_core.rollout.episodes.episode import Episode


def text_columns(
    episodes: Sequence[Episode], decode: Callable[[list[int], frozenset[str]], str]
) -> dict[str, Sequence[object]]:
    """Return the object columns of rows. Args: decode: text of tokens, with the special tokens that
    stay in it."""
    return {
        "uid": [e.item["uid"] for e in episodes],
        "prompt": [e.item["prompt"] for e in episodes],
        "media": [tensors_alone(e.media) for e in episodes],
        "response": [
            decode(e.response_ids, e.tags) if e.answer is None else e.answer for e in episodes
        ],
        "ground_truth": [e.item["env_extras"]["reward_spec"]["ground_truth"] for e in episodes],
        "row": [_without_pictures(e.item["env_extras"]) for e in episodes],
        "stop_reason": [str(e.stop_reason) for e in episodes],
        "replies": [list(e.replies) for e in episodes],
        "turns": [e.turns for e in episodes],
        "env_seconds": [e.env_seconds for e in episodes],
        "env_class": [e.item["env_class"] for e in episodes],
        "env_metrics": [e.env_metrics for e in episodes],
        "env_read": [e.env_read for e in episodes],
        "env_answer": [answer_read(e.metadata) for e in episodes],
        "error": [e.error for e in episodes],
        "failed_call": [None if e.failed_call is None else str(e.failed_call) for e in episodes],
        "timed_out": [e.timed_out for e in episodes],
    }


def _without_pictures(row: Mapping[str, object]) -> dict[str, object]:
    """Return the columns of a row that scorers may read."""
    return {name: value for name, value in row.items() if name != "images"}
