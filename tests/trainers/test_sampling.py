"""A whole text job that draws from a part of the distribution: the trainer has the
log-probabilities that were sampled, with every way of computing them, over several turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.errors import ModelError
from rl_core.models.decoding.request import StopReason
from rl_core.models.decoding.token_choice import SUPPORT
from rl_core.trainers.domains.text import TextTrainer
from rl_core.trainers.track import prompt_batch
from schemas.recipe import Recipe
from schemas.sections.sampling import EvaluationSampling
from tests.rollout.built import built

NUM_PROMPTS, NUM_SIBLINGS = 4, 2
TOLERANCE = 2e-4
EVERYTHING: dict[str, Any] = {
    "top_k": 30,
    "top_p": 0.8,
    "repetition_penalty": 1.2,
    "min_new_tokens": 2,
    "temperature": 0.8,
}


class TwiceEnv(BaseTextEnv):
    """Two turns, each of which ends at a vowel; pays for the share of lower-case letters."""

    stop = ("a", "e", "i", "o", "u")

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        reward = sum(letter.islower() for letter in action) / max(1, len(action))
        done = self.turns == 2
        heard = [] if done else [{"role": "user", "content": f"again {action[-1:]}"}]
        return BaseTextEnvStepOutput(observations=heard, reward=reward, done=done, metadata={})


ITEMS = [
    {
        "uid": f"row-{row}",
        "prompt": [{"role": "user", "content": f"say {row * 7}" + " more" * (row % 3)}],
        "env_class": "tests.trainers.test_sampling:TwiceEnv",
        "env_extras": {"reward_spec": {"ground_truth": ""}},
    }
    for row in range(NUM_PROMPTS * 2)
]


def recipe(model_dir: Path, rollout: dict[str, Any], **changes: Any) -> Recipe:
    placement = {"num_devices": 1, "threads_per_device": 1} | changes.pop("placement", {})
    training = {"num_iterations": 1, "steps_per_iteration": 2, "prompts_per_step": NUM_PROMPTS}
    return Recipe.model_validate(
        {
            "name": "twice",
            "model": {"path": str(model_dir)},
            "fsdp": {"param_dtype": "float32"},
            "optimizer": {"learning_rate": 1e-2, "eps": 1e-4},
            "data": {"train": ["unused"], "eval": ["unused"]},
            "rollout": {"samples_per_prompt": NUM_SIBLINGS, "max_new_tokens": 8} | rollout,
            "training": training | changes.pop("training", {}),
            "placement": placement,
        }
        | changes
    )


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("rollout", "changes"),
    [
        pytest.param(
            EVERYTHING,
            {"lora": {"rank": 4, "alpha": 8}, "algorithm": {"name": "grpo", "entropy_coef": 0.01}},
            id="lora-shared-prompts",
        ),
        pytest.param(
            {"min_p": 0.2},
            {
                "placement": {"max_tokens_per_micro_batch": 64},
                "training": {"num_updates_per_batch": 2},
            },
            id="full-packed-two-updates",
        ),
        pytest.param(
            EVERYTHING | {"engine": "dedicated", "sync": {"dtype": "float32"}},
            {
                "placement": {
                    "num_devices": 3,
                    "rollout_devices": 1,
                    "tp_size": 2,
                    "micro_batch_size": 3,
                },
                "algorithm": {"name": "grpo", "kl": {"coef": 0.1}},
            },
            id="dedicated-tp2",
        ),
    ],
)
def test_the_trainer_has_the_log_probabilities_that_were_sampled(
    tiny_model_dir: Path, rollout: dict[str, Any], changes: dict[str, Any]
):
    settings = recipe(tiny_model_dir, rollout, **changes)
    with built(TextTrainer(settings, str(tiny_model_dir), ITEMS)) as trainer:
        ended = []
        for _ in range(2):
            metrics, played = trainer.step()
            assert 0.0 <= metrics["delta_log_prob_max"] < TOLERANCE
            assert metrics["grad_norm"] > 0
            assert all(len(one) > 0 for one in played.non_tensor_batch[SUPPORT])
            ended += list(played.non_tensor_batch["stop_reason"])
            for replies, reason in zip(
                played.non_tensor_batch["replies"], ended[-len(played) :], strict=True
            ):
                if reason == StopReason.STOP:
                    assert replies[-1][-1] in TwiceEnv.stop
        assert str(StopReason.STOP) in ended


def test_a_temperature_of_evaluations_samples_and_leaves_greedy_replies_greedy(
    ray_cluster: None, tiny_model_dir: Path
):
    settings = recipe(tiny_model_dir, {"stop": ["7"]})
    with built(TextTrainer(settings, str(tiny_model_dir), ITEMS)) as trainer:
        prompts = prompt_batch(ITEMS[:3])

        def said(choice: EvaluationSampling | None) -> list[str]:
            played = trainer.wiring.held_out.play(prompts, 8, choice)
            assert SUPPORT not in played.non_tensor_batch
            return list(played.non_tensor_batch["response"])

        greedy = said(None)
        assert said(EvaluationSampling(temperature=1.5, top_k=1)) == greedy
        warm = said(EvaluationSampling(temperature=1.5, stop=[]))
        assert warm != greedy
        assert said(EvaluationSampling(temperature=1.5, stop=[])) == warm


def test_a_rollout_that_does_not_say_what_could_be_drawn_is_refused(
    ray_cluster: None, tiny_model_dir: Path
):
    """Such as that of an engine of the user's."""
    settings = recipe(tiny_model_dir, {"top_p": 0.9})
    with built(TextTrainer(settings, str(tiny_model_dir), ITEMS)) as trainer:
        (track,) = trainer.tracks.values()
        rollout = track.sampler.sample(prompt_batch(ITEMS[:NUM_PROMPTS]), {}, 0, 0)
        without = rollout.select(sorted(rollout.keys - {SUPPORT}))
        with pytest.raises(ModelError, match=r"rollout\.top_p: .* has no column 'support'"):
            track.learner.stack.measure(without)
