"""Questions answered by searching (Search-R1): `<search>` queries a retrieval server, `<answer>`
ends the conversation.

The reward is 1 if the answer equals the truth, or one of several, after SQuAD's normalisation
(lower case, no punctuation, no articles, single spaces), else 0. Only the model's own last
`<answer>` counts, never one in a retrieved page.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, OracleReplies, tag_pairs
from rl_core.envs.registration import environments
from rl_core.envs.tools.answers import last_tag
from rl_core.envs.tools.search import SearchToolGroup
from rl_core.envs.tools.tags import tagged
from schemas.sections.checks.numbers import Seconds

NO_QUERY = (
    "Your previous action is invalid. Put a query between <search> and </search>, "
    "or the answer between <answer> and </answer>."
)

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Normalise an answer as SQuAD does (arXiv 1606.05250, the evaluation script)."""
    words = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", words).split())


def exact_match(answer: str, truth: str) -> bool:
    """Return True if two answers are equal after normalisation; answers that normalise to nothing
    (`The`) must be the same text."""
    if normalised(truth):
        return normalised(answer) == normalised(truth)
    return bool(answer.strip()) and answer.strip().casefold() == truth.strip().casefold()


class SearchSettings(BaseTextEnv.Config):
    """Settings shared by environments with the search tool."""

    max_turns: int = Field(default=2, ge=1)
    """Maximum number of turns."""
    search_url: str = "http://127.0.0.1:8000/retrieve"
    """Address of the retrieval server; `rl-train serve-search corpus.jsonl` starts one on this
    machine."""
    topk: int = Field(default=3, ge=1)
    """Documents per search."""
    timeout: Seconds = Field(default=30.0, gt=0)
    """Seconds for one search, including retries."""
    max_tries: int = Field(default=3, ge=1)
    """Number of tries for a search on a failing server."""

    def tool_group(self) -> SearchToolGroup:
        """Create the search tool with these settings."""
        return SearchToolGroup(self.search_url, self.topk, self.timeout, self.max_tries)


@environments.register("search")
class SearchEnv(BaseTextEnv):
    """Environment of up to `max_turns` turns; reward 1.0 if the model's answer is right, else
    0.0."""

    class Config(SearchSettings):
        """Settings from the recipe's `env_config`; all belong to the search tool."""

    config: Config
    ground_truth_kinds: ClassVar[frozenset[str]] = frozenset({"string", "number", "list"})
    tags: ClassVar[frozenset[str]] = tag_pairs("think", "search", "information", "answer")
    stop: tuple[str, ...] = ("</search>", "</answer>")

    def __init__(
        self,
        env_config: Config | Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        """Check the row and create its tools.

        Raises: EnvError when the row's ground truth is missing.
        """
        super().__init__(env_config, extras)
        self.truths = [str(answer) for answer in self.acceptable_answers]
        self.init_tool_groups([self.config.tool_group()])
        self._metrics: dict[str, float] = {"searches": 0.0, "search_errors": 0.0}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Search, or grade the turn if it has an answer or is the last one."""
        self.turns += 1
        answer = last_tag(action)
        if answer is not None or self.turns >= self.max_turns:
            reward = float(
                answer is not None and any(exact_match(answer, truth) for truth in self.truths)
            )
            self._metrics.update(correct=reward, answered=float(answer is not None))
            metadata = {"answer": answer.strip() if answer is not None else None}
            return BaseTextEnvStepOutput(
                observations=[], reward=reward, done=True, metadata=metadata
            )
        queries = tagged(action, "search")
        if not queries:
            text, metadata = NO_QUERY, {"tool_group": None, "tool_name": None, "tool_input": ""}
        else:
            group, name = "SearchToolGroup", "search"
            found = self._execute_tool(group, name, [queries[0]])
            text = f"\n<information>{found}</information>\n"
            metadata = {"tool_group": group, "tool_name": name, "tool_input": queries[0]}
            self._metrics["searches"] += 1
            self._metrics["search_errors"] += "Search error" in found[:24]
        return BaseTextEnvStepOutput(
            observations=[{"role": "user", "content": text}],
            reward=0.0,
            done=False,
            metadata=metadata,
        )

    def oracle_replies(self) -> OracleReplies:
        """Return the truth and words that are in nobody's answer, each in `<answer>`."""
        wrong = "zyx none of these xyz"
        return OracleReplies(f"<answer>{self.truths[0]}</answer>", f"<answer>{wrong}</answer>")

    def get_metrics(self) -> dict[str, float]:
        """Return `correct`, `answered`, `searches`, `search_errors` and `turns`."""
        return {**self._metrics, "turns": float(self.turns)}
