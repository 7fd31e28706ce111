"""Procedural tasks of the reasoning-gym package, graded by each task's own scorer, without a
download.

A row's `extra_info` is `{task, seed, index, config, question}`. Most scorers read the entry's
metadata, which rows do not have, so the entry is generated again from (task, seed, index, config)
and must have the row's question. Tasks whose content depends on the size of the data set (`acre`)
need `size` in `config`.

Scorers run in processes of their own with a deadline: several evaluate the answer, and one that
would be computed for ever is wrong.

A scorer that raises on a reply grades it 0 and says so in `metadata["scorer_error"]`: scorers raise
on malformed answers (`prime_factorization` on words), and a malformed reply must not avoid a 0.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Mapping
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rl_core.envs.base import (
    BaseTextEnv,
    BaseTextEnvStepOutput,
    Message,
    OracleReplies,
    plain,
    tag_pairs,
)
from rl_core.envs.registration import environments
from rl_core.envs.tools.answers import AnswerPlace, read_answer, written_at
from rl_core.envs.tools.expressions import is_harmless_literal, is_plain_arithmetic
from rl_core.envs.tools.workers.worker_pool import WorkerOverran, WorkerPool
from rl_core.errors import EnvError
from rl_core.runtime.registry import nearest

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset


UNSOUND_SCORERS = {
    "game_of_life_halting": "its scorer gives full marks to any text",
    "puzzle24": "its scorer does not compare the numbers used with the numbers given",
}
"""Tasks whose scorer in reasoning-gym 0.1.25 gives full reward to wrong answers, with the
reason."""

TIMEOUT_S = 15.0
"""Seconds for one score. Right answers take milliseconds, and a busy machine some times that."""
_WORKER = Path(__file__).parent / "tools/workers/reasoning_worker.py"


@cache
def _scorers() -> WorkerPool:
    """Return the scoring processes of this process. They stay until it ends: reasoning-gym takes
    seconds to import."""
    pool = WorkerPool(str(_WORKER), max_workers=2)
    atexit.register(pool.close)
    return pool


_EVALUATED_LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
_EVALUATED_ARITHMETIC = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)


@environments.register("reasoning_gym")
class ReasoningGymEnv(BaseTextEnv):
    """Single-turn environment; reward 1.0 for the scorer's full score, else 0.0 (or the score
    itself with `partial_credit`)."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `env_config`."""

        answer: AnswerPlace = AnswerPlace.LAST_NUMBER
        """Place of the answer in the reply."""
        partial_credit: bool = False
        """Use fractional scores as rewards. Several scorers give them to a long text that merely
        contains the answer."""
        allow_unsound_scorers: bool = False
        """Accept tasks whose scorer is known to give full reward to wrong answers."""

    config: Config
    ground_truth_kinds: ClassVar[frozenset[str]] = frozenset({"string", "number"})
    tags: ClassVar[frozenset[str]] = tag_pairs("think", "answer")

    def __init__(
        self,
        env_config: Config | Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        """Check the row.

        Raises: EnvError when the row lacks its task, seed or index, names a task with an unsound
        scorer, or its entry cannot be generated.
        """
        super().__init__(env_config, extras)
        self.task = self._field("task", str)
        self.seed = self._field("seed", int)
        self.index = self._field("index", int)
        if self.task in UNSOUND_SCORERS and not self.config.allow_unsound_scorers:
            reason = UNSOUND_SCORERS[self.task]
            raise EnvError(
                f"{self.where}: task {self.task!r}: {reason}; set allow_unsound_scorers to use "
                "it anyway"
            )
        self._metrics: dict[str, float] = {}
        # Made here, so that a row that cannot be graded is refused before any run.
        self.question: str = self.entry["question"]

    def init(self, prompt: list[Message]) -> tuple[list[Message], dict[str, object]]:
        """Return the prompt unchanged, and the task's name and question."""
        return prompt, {"task": self.task, "question": self.question}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade the reply; `metadata` has the answer that was read and the scorer's own score in
        [0, 1]."""
        self.turns += 1
        answer = read_answer(action, self.config.answer)
        score, error = self._score(answer)
        reward = score if self.config.partial_credit else float(score >= 1.0)
        self._metrics = {
            "correct": float(score >= 1.0),
            "answered": float(answer is not None),
            "scorer_error": float(error is not None),
        }
        metadata = {"task": self.task, "answer": answer, "score": score}
        if error is not None:
            metadata["scorer_error"] = error
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata=metadata)

    def oracle_replies(self) -> OracleReplies | None:
        """Return the entry's own answer and one that no task has, where the recipe looks for
        answers; None for a task whose entries have no answer."""
        right, place = self.entry.get("answer"), self.config.answer
        if right is None:
            return None
        return OracleReplies(written_at(str(right), place), written_at("-982451653", place))

    def get_metrics(self) -> dict[str, float]:
        """Return `correct`, `answered` and `scorer_error`, 0 or 1 each."""
        return dict(self._metrics)

    @cached_property
    def entry(self) -> dict[str, Any]:
        """The scorer's reference: question, answer and metadata. Raises: EnvError when it cannot be
        generated."""
        try:
            entry = dict(self._dataset[self.index])
        except IndexError as error:
            raise EnvError(
                f"{self.where}: extra_info.index: task {self.task!r} has no index {self.index}: "
                f"{error}"
            ) from error
        question = self.extra_info.get("question")
        if question is not None and question != entry["question"]:
            raise EnvError(
                f"{self.where}: extra_info.question: task {self.task!r} with seed {self.seed} and "
                f"index {self.index} no longer asks the row's question; prepare the data again "
                "with this version of reasoning-gym, or put size into config"
            )
        if self.reward_spec.get("ground_truth") is not None:
            entry["answer"] = str(self.ground_truth)
        return entry

    @cached_property
    def _config_json(self) -> str:
        given = plain(self.extra_info.get("config")) or {}
        try:
            config = json.loads(given) if isinstance(given, str) else given
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, Mapping):
            raise EnvError(
                f"{self.where}: extra_info.config must be an object, or one as JSON text, got "
                f"{given!r:.200}"
            )
        # Parquet gives every row the keys of all rows, None where a row had none.
        config = {key: plain(value) for key, value in config.items() if value is not None}
        return json.dumps({"size": self.index + 1, **config, "seed": self.seed}, sort_keys=True)

    @cached_property
    def _dataset(self) -> ProceduralDataset:
        try:
            return _dataset(self.task, self._config_json)
        except (TypeError, ValueError, AssertionError) as error:
            raise EnvError(
                f"{self.where}: extra_info.task: {self.task!r} cannot be made with "
                f"{self._config_json}: {error}"
            ) from error

    def _score(self, answer: str | None) -> tuple[float, str | None]:
        if answer is None or not _is_safe(self.task, answer):
            return 0.0, None
        is_given = self.reward_spec.get("ground_truth") is not None
        truth = str(self.ground_truth) if is_given else None
        module = type(self._dataset).__module__
        asked = (module, self.task, self._config_json, self.index, truth, answer)
        try:
            score, error = _scorers().ask(asked, TIMEOUT_S)
        except WorkerOverran:
            return 0.0, f"the scorer took longer than {TIMEOUT_S:g} s"
        if score is None:
            raise EnvError(
                f"{self.where}: task {self.task!r} of the module {module} cannot be made in the "
                f"scoring process: {error}"
            )
        return score, error

    def _field(self, name: str, kind: type) -> Any:
        value = plain(self.extra_info.get(name))
        if isinstance(value, float) and kind is int and value.is_integer():
            value = int(value)
        if not isinstance(value, kind) or isinstance(value, bool) or (kind is int and value < 0):
            if kind is str:
                expected = "a task name of reasoning-gym"
            else:
                expected = "a whole number of at least 0"
            raise EnvError(f"{self.where}: extra_info.{name} must be {expected}, got {value!r}")
        return value


def _is_safe(task: str, answer: str) -> bool:
    if task in _EVALUATED_LITERALS:
        return is_harmless_literal(answer)
    if task in _EVALUATED_ARITHMETIC:
        return is_plain_arithmetic(answer)
    # NaN passes a test of the form `error > tolerance` as a right answer.
    return task != "complex_arithmetic" or not any(
        word in answer.lower() for word in ("nan", "inf")
    )


@lru_cache(maxsize=256)
def _dataset(task: str, config_json: str) -> ProceduralDataset:
    from reasoning_gym.factory import DATASETS, create_dataset

    if task not in DATASETS:
        raise ValueError(f"unknown task{nearest(task, list(DATASETS))}")
    return create_dataset(task, **json.loads(config_json))
