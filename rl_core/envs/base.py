"""Base class of text environments: one row, one or more turns, a reward for each turn."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypedDict

from pydantic import Field, ValidationError, field_validator

from rl_core.envs.tools.core import ToolGroup
from rl_core.errors import EnvError
from rl_core.runtime.registry import PluginConfig, describe_validation_error
from schemas.rows.ground_truth import ground_truth_kind, paired_test_cases
from schemas.sections.sampling import checked_stop

Message: TypeAlias = dict[str, Any]
"""A chat message, `{"role": ..., "content": ...}`; a template may read other keys too."""
ConversationType: TypeAlias = list[Message]
"""Messages in order."""


class BaseTextEnvStepOutput(TypedDict):
    """Result of one turn."""

    observations: list[Message]
    """Messages that the model sees next; empty when the conversation is done."""
    reward: float
    """Reward of this turn."""
    done: bool
    """True if the conversation is over."""
    metadata: Mapping[str, object]
    """Details for debugging the reward, such as the answer that was read."""


class OracleReplies(NamedTuple):
    """Two replies to a row, written as its environment documents it."""

    right: str
    """The row's own answer, which must earn the full reward."""
    wrong: str
    """Another answer, which must not."""


def plain(value: Any) -> Any:
    """Convert numpy arrays and scalars (as parquet readers return them) in `value` to plain lists
    and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def as_json(given: object) -> object:
    """Return a row's value as JSON has it; what JSON cannot represent becomes text, and numbers
    that are not finite become None."""
    value = plain(given)
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def tag_pairs(*names: str) -> frozenset[str]:
    """Return the opening and the closing tag of each name."""
    return frozenset(tag for name in names for tag in (f"<{name}>", f"</{name}>"))


class BaseTextEnv:
    """One conversation about one row. A subclass implements `step`; everything else has a
    default."""

    class Config(PluginConfig):
        """Settings from the recipe's `env_config`."""

        max_turns: int = Field(default=1, ge=1)
        """Maximum number of turns; `max_turns` in the row or in its `extra_info` overrides it."""
        stop: list[str] | None = None
        """Strings that end a turn, in addition to `rollout.stop`; unset takes those of the class,
        an empty list none."""

        @field_validator("stop", mode="after")
        @classmethod
        def _strings_can_be_found(cls, stop: list[str] | None) -> list[str] | None:
            if stop is None:
                return None
            return checked_stop(stop)

    ground_truth_kinds: ClassVar[frozenset[str]] = frozenset(
        {"string", "number", "list", "test_cases"}
    )
    """Kinds of `reward_spec.ground_truth` that this environment accepts."""
    tags: ClassVar[frozenset[str]] = tag_pairs("think")
    """Tags that the environment reads in replies. If they are special tokens of a tokenizer, they
    stay in the text."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn, such as the closing tag of a tool call; the recipe's option `stop`
    replaces them."""
    max_concurrent_steps: ClassVar[int | None] = None
    """Maximum number of environments of this class that run concurrently in one rank; None leaves
    it to `rollout.episodes.at_once`."""

    full_reward: ClassVar[float] = 1.0
    """Reward of a conversation that gives the right answer."""

    def __init__(
        self,
        env_config: Config | Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        """Check the row.

        Args:
            env_config: a `Config`, or its fields as a mapping.
            extras: the row: `reward_spec`, `extra_info` and any other column.

        Raises: EnvError on an unknown setting or a row that this environment cannot use.
        """
        self.config = self._as_config(env_config)
        if self.config.stop is not None:
            self.stop = tuple(self.config.stop)
        self.extras: dict[str, Any] = dict(extras or {})
        self.max_turns = self._max_turns()
        self.turns = 0
        self.tool_groups: list[ToolGroup] = []
        self.tool_to_toolgroup: dict[str, str] = {}

    def init(self, prompt: list[Message]) -> tuple[list[Message], dict[str, object]]:
        """Return the model's first prompt, and information about the row. Called once, before
        `step`."""
        return prompt, {}

    def step(self, action: str) -> BaseTextEnvStepOutput | Awaitable[BaseTextEnvStepOutput]:
        """Play one turn: take the model's reply, return observations and reward. May be a
        coroutine."""
        raise NotImplementedError(f"{type(self).__name__}.step")

    def oracle_replies(self) -> OracleReplies | None:
        """Return replies whose rewards are known, made from the row alone, with which validation
        plays a sample of rows; None where a row's own answer is not known."""
        return None

    def close(self) -> None:
        """Release the resources of the environment and its tools. Called once, also after an
        error."""
        for group in self.tool_groups:
            group.close()

    def init_tool_groups(self, tool_groups: Iterable[ToolGroup]) -> None:
        """Give the environment its tools."""
        self.tool_groups = list(tool_groups)
        self.tool_to_toolgroup = {}
        for group in self.tool_groups:
            self.tool_to_toolgroup.update(group.get_tool_to_group_mapping())

    def _execute_tool(
        self, tool_group_name: str, tool_name: str, tool_input: Iterable[object]
    ) -> Any:
        """Call a tool and return its result.

        Args: tool_input: positional arguments of the tool. Raises: EnvError when the tool is
        unknown.
        """
        for group in self.tool_groups:
            if group.get_name() == tool_group_name:
                return group.execute_tool(tool_name, *tool_input)
        raise EnvError(f"{self.where}: there is no tool group {tool_group_name!r}")

    def get_metrics(self) -> dict[str, float]:
        """Return the metrics of this conversation, read after the last turn."""
        return {}

    @staticmethod
    def aggregate_metrics(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return the mean of each metric over the conversations that report it."""
        values: dict[str, list[float]] = {}
        for one in metrics:
            for name, value in one.items():
                values.setdefault(name, []).append(float(value))
        return {name: sum(values[name]) / len(values[name]) for name in sorted(values)}

    @property
    def extra_info(self) -> dict[str, Any]:
        """The row's `extra_info`, empty if it has none."""
        return dict(self.extras.get("extra_info") or {})

    @property
    def reward_spec(self) -> Mapping[str, Any]:
        """The row's `reward_spec`, or its `reward_model` (the DAPO and verl name for it); empty if
        it has neither."""
        found = self.extras.get("reward_spec")
        return (self.extras.get("reward_model") if found is None else found) or {}

    @property
    def ground_truth(self) -> Any:
        """The row's ground truth, with `{"target": ...}` unwrapped and test cases parsed from JSON.

        Raises: EnvError when it is missing or of a kind that the environment does not accept.
        """
        value = plain(self.reward_spec.get("ground_truth"))
        if isinstance(value, Mapping) and set(value) == {"target"}:
            value = plain(value["target"])
        if isinstance(value, str) and self.ground_truth_kinds == {"test_cases"}:
            value = _from_json(value)
        if "test_cases" in self.ground_truth_kinds:
            cases = paired_test_cases(value)
            value = value if cases is None else cases
        if ground_truth_kind(value) not in self.ground_truth_kinds:
            allowed = ", ".join(sorted(self.ground_truth_kinds))
            raise EnvError(
                f"{self.where}: reward_spec.ground_truth must be one of ({allowed}), got "
                f"{value!r:.200}"
            )
        return value

    @property
    def acceptable_answers(self) -> list[Any]:
        """The ground truth as a list of answers, each of which is right. Raises: EnvError as
        `ground_truth` does."""
        truth = self.ground_truth
        if isinstance(truth, list | tuple):
            return list(truth)
        return [truth]

    def row_value(self, *names: str) -> Any:
        """Return the value of the first of these columns in the row or its `extra_info`; None if it
        has none of them."""
        for place in (self.extras, self.extra_info):
            for name in names:
                value = plain(place.get(name))
                # A column that only some rows fill reads back as None or NaN in the others.
                if value is not None and not (isinstance(value, float) and math.isnan(value)):
                    return value
        return None

    @property
    def where(self) -> str:
        """Name of the row in error messages."""
        index = self.extra_info.get("index")
        return type(self).__name__ + (f" row {index}" if index is not None else "")

    def _as_config(self, env_config: Config | Mapping[str, Any] | None) -> Config:
        config_cls = type(self).Config
        if isinstance(env_config, config_cls):
            return env_config
        try:
            return config_cls(**dict(env_config or {}))
        except ValidationError as error:
            raise EnvError(describe_validation_error(error, "env_config", config_cls)) from error

    def _max_turns(self) -> int:
        value = self.row_value("max_turns")
        if value is None:
            return self.config.max_turns
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value < 1
            or value != int(value)
        ):
            raise EnvError(
                f"{self.where}: max_turns must be a whole number of at least 1, got {value!r}"
            )
        return int(value)


def _from_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
