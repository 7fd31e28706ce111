"""The embedded unified model: its tokens, what its transformer is shown, its folder, and that it
can learn."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.builtin.data.odd_prompts import Oddity, OddPrompt, odd_prompts
from rl_core.builtin.embedded import embedded_folder
from rl_core.builtin.models import tiny_unified_warm_up as start
from rl_core.builtin.models.tiny_sd3_warm_up import load
from rl_core.builtin.models.tiny_unified import (
    ASK,
    CONTEXT_LENGTH,
    END,
    WIDTH,
    make_pipeline,
    make_tokenizer,
)
from rl_core.errors import ModelError
from rl_core.models.chat.tokenizer import encode_chat
from rl_core.models.diffusion.base import Condition
from rl_core.models.unified.base import ROWS
from rl_core.models.unified.bundle import load_unified
from rl_core.models.unified.compact import CONTEXT, CompactUnified
from schemas.recipe import ModelConfig

PROMPTS = [
    OddPrompt("siete", 7, Oddity.LANGUAGE),
    OddPrompt("what comes after 1, 3, 5", 7, Oddity.SEQUENCE),
]


@pytest.fixture(scope="module")
def family() -> CompactUnified:
    return CompactUnified(make_pipeline())


def test_words_of_a_plan_are_whole_and_any_prompt_comes_back():
    tokenizer = make_tokenizer()
    assert tokenizer.tokenize("the digit seven") == ["the", "Ġ", "digit", "Ġ", "seven"]
    assert "seven" not in tokenizer.tokenize("sevens") and "one" not in tokenizer.tokenize("onne")
    for text in ("the digit seven", "zürich: Ⅶ?", "7 - 3 = ?"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    asked = encode_chat(tokenizer, [{"role": "user", "content": "V"}], {})
    assert tokenizer.convert_ids_to_tokens(asked) == ["V", ASK]
    assert tokenizer.eos_token == END


def test_the_transformer_is_shown_the_end_of_each_context_whatever_stands_beside_it(
    family: CompactUnified,
):
    contexts = [
        torch.tensor([id for part in start._tokens(family, prompt, 7) for id in part])
        for prompt in PROMPTS
    ]
    short = torch.tensor([5, 6, 7])
    told = family.batch([Condition({CONTEXT: ids}) for ids in (*contexts, short)])
    with torch.no_grad():
        shown = family.read(family.transformer, {**told, ROWS: torch.tensor([2, 0, 0, 1])})
        alone = family.transformer.decoder.model(input_ids=contexts[0][None]).last_hidden_state[
            0, -CONTEXT_LENGTH:
        ]
    assert shown["prompt_embeds"].shape == (4, CONTEXT_LENGTH, WIDTH)
    torch.testing.assert_close(shown["prompt_embeds"][1], alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(shown["pooled"][1], alone[-1], atol=1e-5, rtol=0)
    assert torch.equal(shown["prompt_embeds"][1], shown["prompt_embeds"][2])
    assert torch.count_nonzero(shown["prompt_embeds"][0, : CONTEXT_LENGTH - 3]) == 0
    torch.testing.assert_close(shown["pooled"][0], shown["prompt_embeds"][0, -1])


def test_a_folder_comes_back_as_it_was_saved(family: CompactUnified, tmp_path: Path):
    family.pipeline.save_pretrained(tmp_path / "model")
    again = load_unified(str(tmp_path / "model"), ModelConfig(path="model"))
    ours, theirs = family.transformer.state_dict(), again.transformer.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert again.pipeline.config.context_length == CONTEXT_LENGTH
    assert start._tokens(again, PROMPTS[0], 7) == start._tokens(family, PROMPTS[0], 7)


def test_another_pipeline_is_no_unified_model(tiny_sd3_dir: Path):
    with pytest.raises(
        ModelError, match="unified models of class StableDiffusion3Pipeline are not supported"
    ):
        load_unified(str(tiny_sd3_dir), ModelConfig(path=str(tiny_sd3_dir)))


def test_both_losses_fall_and_pictures_follow_the_plan_not_the_prompt(family: CompactUnified):
    known = [prompt for oddity in Oddity for prompt in odd_prompts(oddity, "train")][:200]
    digits, rng = load(family.pipeline), random.Random(0)
    optimizer = torch.optim.AdamW(family.transformer.parameters(), lr=1e-3)
    losses: list[tuple[float, float]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(8):
            plan, flow = (
                start.plan_loss(family, known[:16], rng, vague=0.0),
                start.flow_loss(family, digits, known, rng),
            )
            optimizer.zero_grad()
            (plan + flow).backward()
            optimizer.step()
            losses.append((plan.item(), flow.item()))
    assert losses[-1][0] < 0.7 * losses[0][0]
    assert losses[-1][1] < losses[0][1]
    # What nothing but the plan tells cannot be learnt from the prompt: another digit is another
    # context.
    planned = [start._contexts(family, [(PROMPTS[0], digit)])[CONTEXT] for digit in (3, 8)]
    assert not torch.equal(*planned)


def test_a_warm_up_that_does_not_get_there_is_an_error(family: CompactUnified):
    with pytest.raises(ModelError, match=r"tiny-unified plans 0\.\d\d right; 0\.6 is wanted"):
        start.warm_up(family.pipeline, plan_steps=1)
    with pytest.raises(
        ModelError, match=r"draws 0\.\d\d of the planned digits after 0 steps; 0\.5 is wanted"
    ):
        start.learn_to_draw(family, 0, random.Random(0), [])


def test_a_vague_plan_names_nothing_and_is_learnt_as_such(family: CompactUnified):
    prompt = odd_prompts(Oddity.ROMAN, "train")[0]
    asked, vague = start._tokens(family, prompt, None)
    same, named = start._tokens(family, prompt, 7)
    assert asked == same
    decode = family.pipeline.tokenizer.decode
    assert (decode(vague), decode(named)) == ("the digit<|end|>", "the digit seven<|end|>")
    sure = start.plan_loss(family, [prompt] * 8, random.Random(0), vague=1.0)
    optimizer = torch.optim.AdamW(family.transformer.parameters(), lr=1e-3)
    sure.backward()
    optimizer.step()
    assert start.plan_loss(family, [prompt] * 8, random.Random(0), vague=1.0) < sure


def test_what_a_question_means_is_learnt_without_a_plan(family: CompactUnified):
    known = [("siete", 7), ("X - III", 7), ("eihgt", 8)] * 4
    optimizer = torch.optim.AdamW(family.transformer.parameters(), lr=1e-3)
    first = start.meaning_loss(family, known)
    first.backward()
    optimizer.step()
    assert start.meaning_loss(family, known) < first
    # The other digits' names become less likely, and nothing is learnt of the questions themselves.
    assert start.meaning_loss(family, [("siete", 3)]) > start.meaning_loss(family, known[:1])


def test_its_folder_is_named_by_the_code_that_makes_it(tmp_path: Path):
    made: Any = embedded_folder("tiny-unified", tmp_path)
    assert made.parent == tmp_path and len(made.name.removeprefix("tiny-unified-")) == 12
