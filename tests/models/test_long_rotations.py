"""Rotations that switch with the longest row of a batch: within the original length a row is the
same beside others."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Phi3Config, Phi3ForCausalLM

from rl_core.errors import ModelError
from rl_core.models.bundle import ModelBundle
from rl_core.models.checks.row_length import CONTEXT_KEY, row_limit_of
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Request, Sampling
from schemas.recipe import ModelConfig

ORIGINAL = 24


@pytest.fixture(scope="module")
def bundle(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelBundle:
    folder = tmp_path_factory.mktemp("longrope")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    config = Phi3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        original_max_position_embeddings=ORIGINAL,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [2.0, 4.0, 6.0, 8.0],
            "original_max_position_embeddings": ORIGINAL,
        },
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Phi3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ModelBundle(str(folder), ModelConfig(path=str(folder)))


def own(bundle: ModelBundle, ids: list[int], start: int) -> torch.Tensor:
    """What the model itself says of the tokens from `start` on, the row by itself."""
    with torch.no_grad():
        logits_LV = bundle.policy.language_model(
            input_ids=torch.tensor([ids]), use_cache=False
        ).logits[0]
    return (
        logits_LV[start - 1 : -1]
        .log_softmax(-1)
        .gather(-1, torch.tensor(ids[start:])[:, None])[:, 0]
    )


def test_rows_up_to_the_original_length_are_the_same_beside_others(bundle: ModelBundle) -> None:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(4, 90, (length,), generator=generator).tolist() for length in (3, 11)]
    limit, _ = row_limit_of(bundle.policy, None, CONTEXT_KEY)
    assert limit == ORIGINAL
    requests = [Request(prompt, 2, limit - len(prompt)) for prompt in prompts]
    sampling = Sampling(100, 1.0, (), 0)
    replies = decode(bundle.policy, requests, sampling, generator, torch.device("cpu"))
    assert [len(reply.token_ids) for reply in replies] == [21, 21, 13, 13]
    for prompt, reply in zip(
        [prompt for prompt in prompts for _ in range(2)], replies, strict=True
    ):
        truth = own(bundle, [*prompt, *reply.token_ids], len(prompt))
        assert torch.allclose(torch.tensor(reply.log_probs), truth, atol=1e-4)


def test_beyond_it_a_row_would_depend_on_its_batch_and_is_refused(bundle: ModelBundle) -> None:
    ids = list(range(4, 4 + ORIGINAL))
    longer = own(bundle, [*ids, 40], 2)[: ORIGINAL - 2]
    assert (longer - own(bundle, ids, 2)).abs().max() > 1e-2, (
        "the frequencies do not switch: the test shows nothing"
    )
    with pytest.raises(
        ModelError,
        match=rf"rollout.max_context_length is {ORIGINAL + 1}, but .* longrope frequencies",
    ):
        row_limit_of(bundle.policy, ORIGINAL + 1, CONTEXT_KEY)
