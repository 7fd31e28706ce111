"""The domain of given answers: supervised fine-tuning, where nothing is sampled but the replies of
evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, placement, remote
from rl_core.evaluation.runner import WRITTEN
from rl_core.models.bundle import ModelBundle
from rl_core.rollout.taught import MEASURES, TaughtEngine
from rl_core.train.stacks.noisy_stack import NoisyStack
from rl_core.train.stacks.token_stack import TrainStack
from rl_core.trainers.base import Trainer
from rl_core.trainers.domains.text import HeldOutReplies, token_learner
from rl_core.trainers.domains.vision import SEEING
from rl_core.trainers.handles import BackendHandle, EngineHandle
from rl_core.trainers.metrics.describe import describe_answers
from rl_core.trainers.rewards import ServiceScorer
from rl_core.trainers.track import Engine, Learner, Rollouts, Track, Wiring, prompt_batch
from rl_core.trainers.wiring import side_by_side, topology_of, wire_scorers
from schemas.recipe import Recipe
from schemas.sections.evaluation_sets import SampledReplies
from schemas.sections.placement import ROWS_OF_A_PASS
from schemas.sections.sampling import EvaluationSampling

TRACK = "answers"


class SftTrainer(Trainer):
    """Supervised fine-tuning of a language or vision-language model on the answers in its rows."""

    def wire(self) -> Wiring:
        """Place all components in one block, in which they share a process per device."""
        recipe, placed = self.recipe, self.recipe.placement
        kind = replace(SEEING, learner=_learner)
        with placement(self.pool, topology=topology_of(placed)):
            policy = side_by_side(kind, recipe, self.source_model)
            service = wire_scorers(recipe)
            backend = policy.learner.backend
            # The driver's view of the engine; its own signatures are those of one rank.
            taught = cast(
                EngineHandle,
                remote(
                    TaughtEngine,
                    backend,
                    recipe.sft,
                    recipe.model.chat_template_kwargs,
                    micro_batch_size=placed.micro_batch_size or ROWS_OF_A_PASS,
                ),
            )
        answers = GivenAnswers(Engine(taught))
        track = Track(
            TRACK, sampler=answers, scorer=None, learner=policy.learner, describe=describe_answers
        )
        scorer = ServiceScorer.of(recipe, service, recipe.evaluation.max_new_tokens)
        replies = HeldOutReplies(policy.engine, scorer if recipe.evaluation.scorers else None)
        return Wiring(
            tracks=(track,),
            held_out=HeldOutAnswers(answers.engine, replies),
            policies={"policy": backend},
            exported={"": backend},
            with_notes=[backend, taught],
        )


def _learner(recipe: Recipe, source_model: str, backend: BackendHandle | None) -> Learner:
    """Place the learner. Answers that nobody sampled are learnt under the model's own
    distribution."""
    alpha = recipe.sft.neftune_alpha
    return token_learner(
        recipe,
        source_model,
        backend,
        bundle_class=ModelBundle,
        temperature=1.0,
        stack_class=NoisyStack if alpha else TrainStack,
        stack_extras={"neftune_alpha": alpha, "seed": recipe.seed} if alpha else {},
    )


@dataclass
class GivenAnswers:
    """Sampler that returns the answers as they are in the data."""

    engine: Engine

    def sample(
        self, prompts: DataProto, rollouts: Rollouts, step: int, attempt: int
    ) -> DataProtoRef:
        """Return the tokens of each row's conversation."""
        return self.engine.handle.rollout(prompts)


@dataclass
class HeldOutAnswers:
    """Evaluation of the likelihood of the held-out answers, and of replies to those rows that name
    an environment."""

    taught: Engine
    replies: HeldOutReplies

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the measures of given answers, and keys of the scorers."""
        return (*MEASURES, *self.replies.scores)

    def play(
        self, prompts: DataProto, max_new_tokens: int, choice: EvaluationSampling | None = None
    ) -> DataProto:
        """Return a row for each held-out row: its reply with the environment's reward, or else what
        the model finds likeliest in the places of the given answer. A row that several replies are
        asked of has the measures of its answer in each."""
        items = list(prompts.non_tensor_batch["item"])
        num = choice.samples if isinstance(choice, SampledReplies) else 1
        measured = self.taught.handle.evaluate(prompts).fetch()
        measured = measured[[row for row in range(len(items)) for _ in range(num)]]
        played = [row for row, item in enumerate(items) if "env_class" in item]
        if not played:
            return _joined(measured, None, (), self.replies.scores)
        replies = self.replies.play(
            prompt_batch([items[row] for row in played]), max_new_tokens, choice
        ).fetch()
        places = [row * num + sample for row in played for sample in range(num)]
        return _joined(measured, replies, places, self.replies.scores)


def _joined(
    measured: DataProto, replies: DataProto | None, places: Sequence[int], further: Sequence[str]
) -> DataProto:
    """Return the measured rows, with replies in the places of those that were played.

    Args: further: scores that replies have besides, NaN in other rows.
    """
    tensors = {name: measured.tensor(name) for name in ("rewards", "num_tokens", *MEASURES)}
    nothing_B = torch.full((len(measured),), math.nan)
    tensors |= {name: nothing_B.clone() for name in further}
    texts = {name: list(measured.non_tensor_batch[name]) for name in (*WRITTEN, "error")}
    texts["env_answer"] = [None] * len(measured)
    if replies is not None:
        for name in ("rewards", "num_tokens", *further):
            tensors[name][list(places)] = replies.tensor(name)
        for name, column in texts.items():
            for place, value in zip(places, replies.non_tensor_batch[name], strict=True):
                column[place] = value
    return DataProto.from_dict(tensors, texts)
