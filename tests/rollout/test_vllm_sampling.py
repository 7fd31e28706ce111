"""vLLM draws from the part of the distribution that the recipe names, as the project's own engines
do, and says which part it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_core.models.decoding.request import Reply, Sampling, StopReason
from rl_core.models.decoding.stop_strings import StopStrings
from schemas.sections.sampling import SamplingConfig
from tests.rollout.built import engine_of
from tests.rollout.vllm_parts import (
    ON_VLLM,
    TOLERANCE,
    AskedTrainer,
    distance,
    make_model,
    recipe,
    requests,
    running,
    sampling,
    tokens,
)

pytestmark = ON_VLLM

CHOICES: list[dict[str, Any]] = [
    {"top_k": 4},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 12, "top_p": 0.9, "repetition_penalty": 1.4},
    {"repetition_penalty": 0.7},
    {"min_new_tokens": 6},
    {"top_p": 0.7, "min_new_tokens": 3},
]
EOS = 3


@pytest.fixture(scope="module")
def trainer(
    ray_cluster: None, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AskedTrainer]:
    folder = make_model(tiny_model_dir, tmp_path_factory.mktemp("vllm") / "model")
    placement = {"num_devices": 2, "rollout_devices": 1, "threads_per_device": 1}
    with running(recipe(folder, placement=placement | {"micro_batch_size": 8})) as trainer:
        trainer.sync_weights()
        yield trainer


def restricted(changes: dict[str, Any], temperature: float = 0.9) -> Sampling:
    choice = SamplingConfig.model_validate(changes)
    return replace(
        sampling(10, temperature, (EOS,)), choice=choice, records_support=bool(choice.leaves_out)
    )


@pytest.mark.parametrize("changes", CHOICES, ids=str)
def test_a_reply_has_the_supports_and_log_probabilities_of_our_own_decoding(
    trainer: AskedTrainer, changes: dict[str, Any]
):
    asked, chosen = requests(num_replies=3), restricted(changes)
    replies: list[Reply] = engine_of(trainer).ask(asked, chosen, 3)[0]
    assert len({tuple(ids) for ids in tokens(replies)}) > 3
    repeated = [request for request in asked for _ in range(3)]
    expected: list[Reply] = engine_of(trainer).follow(repeated, replies, chosen)[0]
    assert (
        distance([one.log_probs for one in replies], [one.log_probs for one in expected])
        < TOLERANCE
    )
    for reply, other in zip(replies, expected, strict=True):
        assert (reply.support is None) == (other.support is None)
        if reply.support is not None and other.support is not None:
            assert reply.support.sizes_T.tolist() == other.support.sizes_T.tolist()
            assert reply.support.ids.tolist() == other.support.ids.tolist()


def test_a_stop_string_ends_a_reply_where_our_own_decoding_ends_it(trainer: AskedTrainer):
    whole = engine_of(trainer).ask(requests(), sampling(12, 0.0), 0)[0]
    text = engine_of(trainer).read(whole[1].token_ids)[0]
    stop = StopStrings.of([text[len(text) // 2 :][:3]])
    asked = [replace(request, stop=stop) for request in requests()]
    found: list[Reply] = engine_of(trainer).ask(asked, sampling(12, 0.0), 0)[0]
    expected: list[Reply] = engine_of(trainer).expect(asked, sampling(12, 0.0))[0]
    assert tokens(found) == tokens(expected)
    assert [one.stop_reason for one in found] == [one.stop_reason for one in expected]
    assert found[1].stop_reason is StopReason.STOP
