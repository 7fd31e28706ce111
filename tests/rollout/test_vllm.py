"""The vLLM engine, for real on a CPU: it says what the trainer says, with the trainer's weights or
not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rl_core.errors import StaleEngine, WeightMismatch
from rl_core.models.decoding.request import Request, StopReason
from rl_core.train.weights.buckets import WeightVersion
from rl_core.trainers.track import prompt_batch
from schemas.sections.sampling import SamplingConfig
from tests.rollout.built import engine_of
from tests.rollout.test_dedicated import ITEMS, NUM_PROMPTS, NUM_SIBLINGS
from tests.rollout.vllm_parts import (
    CONTEXT,
    ON_VLLM,
    PROMPTS,
    ROWS_AT_ONCE,
    TOLERANCE,
    AskedTrainer,
    agree,
    distance,
    make_model,
    recipe,
    requests,
    running,
    sampling,
    tokens,
)

pytestmark = ON_VLLM


@pytest.fixture(scope="module")
def model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tiny_model_dir, tmp_path_factory.mktemp("vllm") / "model")


@pytest.fixture(scope="module")
def trainer(ray_cluster: None, model_dir: Path) -> Iterator[AskedTrainer]:
    """One rank that trains, two replicas that sample."""
    with running(recipe(model_dir)) as trainer:
        trainer.sync_weights()
        yield trainer


def test_every_replica_says_greedily_what_our_own_decoding_says(trainer: AskedTrainer):
    assert len(set(engine_of(trainer).server_pid()) | set(trainer.pids())) == 5
    agree(trainer)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_log_probabilities_are_those_of_the_tempered_distribution(
    trainer: AskedTrainer, temperature: float
):
    asked = requests(num_replies=5)
    replies = engine_of(trainer).ask(asked, sampling(12, temperature), 3)[0]
    assert len(replies) == 15
    repeated = [request for request in asked for _ in range(5)]
    expected = engine_of(trainer).score(repeated, replies, temperature)[0]
    assert distance([reply.log_probs for reply in replies], expected) < TOLERANCE


def test_the_same_seed_repeats_and_siblings_differ(trainer: AskedTrainer):
    # More rows than are decoded at once: which of them waits changes nothing.
    asked = requests(num_replies=2 * ROWS_AT_ONCE), sampling(8)
    first, again, other = (engine_of(trainer).ask(*asked, seed)[0] for seed in (1, 1, 2))
    assert first == again
    assert tokens(first) != tokens(other)
    assert len({tuple(ids) for ids in tokens(first)}) > ROWS_AT_ONCE


def test_replies_end_for_the_right_reason(trainer: AskedTrainer):
    ask = engine_of(trainer).ask
    greedy = ask(requests(), sampling(12, 0.0), 0)[0]
    assert [(len(one.token_ids), one.stop_reason) for one in greedy] == [
        (12, StopReason.LENGTH)
    ] * 3
    end = greedy[0].token_ids[3]
    ended = ask(requests(), sampling(12, 0.0, (end,)), 0)[0][0]
    whole = greedy[0].token_ids
    assert ended.stop_reason is StopReason.EOS
    assert ended.token_ids == whole[: whole.index(end) + 1]
    assert len(ended.log_probs) == len(ended.token_ids)
    # The context holds less than may be said, and is filled to its last token.
    full = ask(requests(), sampling(500, 0.0), 0)[0]
    assert [
        len(prompt) + len(one.token_ids) for prompt, one in zip(PROMPTS, full, strict=True)
    ] == [CONTEXT] * 3
    assert [len(one.token_ids) for one in ask(requests(room=5), sampling(12), 0)[0]] == [5, 5, 5]


@pytest.mark.parametrize("choice", [SamplingConfig(), SamplingConfig(top_k=5)], ids=["all", "5"])
def test_requests_that_come_one_by_one_get_the_replies_of_their_seeds(
    trainer: AskedTrainer, choice: SamplingConfig
):
    asked = [replace(one, seed=seed) for seed, one in enumerate(requests())]
    drawn = replace(sampling(12), choice=choice, records_support=True)
    together = engine_of(trainer).ask(asked, drawn, 0)[0]
    apart = engine_of(trainer).ask_one_by_one(asked, drawn)[0]
    assert tokens(apart) == tokens(together)
    assert [one.stop_reason for one in apart] == [one.stop_reason for one in together]
    assert repr([one.support for one in apart]) == repr([one.support for one in together])
    log_probs = ([one.log_probs for one in some] for some in (apart, together))
    assert distance(*log_probs) < TOLERANCE
    # Nothing of the one that was left behind is in the way.
    assert tokens(engine_of(trainer).ask(asked, drawn, 0)[0]) == tokens(together)


def test_siblings_share_a_prefill(trainer: AskedTrainer):
    prompt = [11 + position % 40 for position in range(70)]
    before = engine_of(trainer).shared_prefill()[0]
    engine_of(trainer).ask([Request(prompt, 4, 20)], sampling(2), 0)
    after = engine_of(trainer).shared_prefill()[0]
    # Whole blocks of 32 tokens are shared.
    assert after[0] - before[0] == 4 * 70
    assert after[1] - before[1] == 3 * 64


def test_each_step_samples_with_the_weights_of_the_one_before(trainer: AskedTrainer):
    said = [agree(trainer)]
    for _ in range(3):
        metrics, rollout = trainer.step()
        assert 0.0 <= metrics["delta_log_prob_max"] < TOLERANCE
        assert len(rollout) == NUM_PROMPTS * NUM_SIBLINGS
        assert engine_of(trainer).weight_version() == trainer.backends()["policy"].weight_version()
        said.append(agree(trainer))
    assert said[0] != said[-1]


def test_weights_that_were_not_asked_for_are_refused(trainer: AskedTrainer):
    held: WeightVersion = engine_of(trainer).weight_version()
    with pytest.raises(StaleEngine, match=f"holds weights {held}"):
        engine_of(trainer).rollout(prompt_batch(ITEMS[:2]), 0, WeightVersion(held.number + 1))


def test_one_tampered_bit_is_caught_and_the_engine_refuses(trainer: AskedTrainer):
    trainer.step()
    engine_of(trainer).tamper("model.model.layers.1.mlp.up_proj.weight")
    with pytest.raises(
        WeightMismatch, match=r"1 of \d+ tensors differ .* first model.layers.1.mlp.up_proj.weight;"
    ):
        trainer.step()
    assert engine_of(trainer).weight_version() is None
    with pytest.raises(StaleEngine, match="no complete weights"):
        engine_of(trainer).rollout(prompt_batch(ITEMS[:2]), 0)
    engine_of(trainer).tamper(None)
    trainer.sync_weights()
    agree(trainer)
