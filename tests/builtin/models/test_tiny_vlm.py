"""The embedded vision-language model: its tokenizer, that it can learn what it sees, and where it
is kept."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rl_core.builtin import embedded
from rl_core.builtin.data.pictures import GRID, draw, draw_crowd
from rl_core.builtin.models.tiny_vlm import END, make_model, make_processor
from rl_core.builtin.models.tiny_vlm_lessons import (
    FORMS,
    GUESSED,
    GUESSES,
    TINTS,
    accuracy_on,
    answering_loss,
    ask,
    careless_replies,
    features_of,
    kind_of,
    naming_loss,
    prompt_of,
    reply_of,
)
from rl_core.builtin.models.tiny_vlm_warm_up import learn_to_guess, warm_up
from rl_core.envs import make
from rl_core.errors import ModelError


def test_words_of_the_pictures_are_whole_and_any_text_comes_back():
    tokenizer = make_processor().tokenizer
    question = draw(random.Random(0)).questions[0]
    assert tokenizer.decode(tokenizer.encode(reply_of(question))) == reply_of(question)
    assert (
        tokenizer.decode(tokenizer.encode("Zürich? x+1\n{a}")).replace("<|unk|>", "ü")
        == "Zürich? x+1\n{a}"
    )
    assert len(tokenizer.encode("How many shapes are red?")) == 6


@pytest.mark.parametrize("noted", [False, True])
def test_right_answers_earn_the_whole_reward_with_notes_and_without(noted: bool):
    for question in draw(random.Random(0)).questions:
        env = make("geo3k", {}, {"reward_spec": {"ground_truth": question.answer}})
        graded: Any = env.step(reply_of(question, noted=noted).removesuffix(END))
        env.close()
        assert graded["reward"] == 1.0, (question, graded)


def test_careless_replies_are_noted_and_right_or_guesses_of_the_same_kind():
    rng = random.Random(0)
    questions = [question for _ in range(300) for question in draw(rng).questions]
    replies = careless_replies(questions, rng)
    pairs = list(zip(replies, questions, strict=True))
    habitual = [(reply, question) for reply, question in pairs if kind_of(question) in GUESSED]
    guesses = [(reply, question) for reply, question in habitual if "<think>?" in reply]
    assert len(guesses) / len(habitual) == pytest.approx(GUESSES, abs=0.08)
    assert all(reply == reply_of(question) for reply, question in pairs if "<think>?" not in reply)
    assert all(
        reply == reply_of(question) for reply, question in pairs if kind_of(question) not in GUESSED
    )
    right = sum(reply == reply_of(question, noted=False) for reply, question in guesses) / len(
        guesses
    )
    assert 0.05 < right < 0.4


def test_learning_to_guess_trains_in_place():
    processor = make_processor()
    model = make_model(processor.tokenizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learn_to_guess(model, processor, steps=2)
    assert all(bool(value.isfinite().all()) for value in model.state_dict().values())
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_warm_up_asks_as_the_processor_does():
    processor = make_processor()
    picture = draw(random.Random(0))
    text = processor.apply_chat_template(
        [
            {
                "role": "user",
                "content": [
                    {"type": "image"},
                    {"type": "text", "text": "\n" + picture.questions[0].text},
                ],
            }
        ],
        add_generation_prompt=True,
        tokenize=False,
    )
    inputs = processor(text=[text], images=[[picture.image]], return_tensors="pt")
    assert inputs["input_ids"][0].tolist() == processor.tokenizer.encode(
        prompt_of(processor, picture.questions[0].text)
    )


def test_every_cell_has_a_name_in_words_the_tokenizer_has_as_wholes():
    processor, rng = make_processor(), random.Random(0)
    model = make_model(processor.tokenizer)
    cells = [picture.cells for picture in (draw(rng) for _ in range(60))] + [
        draw_crowd(rng)[1] for _ in range(20)
    ]
    features = torch.randn(len(cells), GRID**2, model.config.text_config.hidden_size)
    assert bool(naming_loss(model, processor, features, cells).isfinite())
    ids = processor.tokenizer.convert_tokens_to_ids([*TINTS.values(), *FORMS.values()])
    assert processor.tokenizer.unk_token_id not in ids and len(set(ids)) == len(TINTS) + len(FORMS)


@pytest.mark.slow
def test_it_can_learn_a_few_pictures_by_heart():
    processor, rng = make_processor(), random.Random(0)
    model = make_model(processor.tokenizer)
    pictures = [draw(rng) for _ in range(6)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(120):
        features = features_of(model, processor, [picture.image for picture in pictures])
        rows = ask(pictures, rng)
        loss = naming_loss(model, processor, features, [picture.cells for picture in pictures])
        loss = loss + answering_loss(
            model, processor, features, rows, [reply_of(question) for _, question in rows]
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert accuracy_on(model, processor, pictures) >= 0.75


def test_a_warm_up_that_does_not_get_there_is_an_error():
    processor = make_processor()
    with pytest.raises(ModelError, match=r"answers 0\.\d\d of 200; 0\.7 is wanted"):
        warm_up(make_model(processor.tokenizer), processor, steps=(0, 0, 0))


def test_its_folder_is_named_by_the_code_that_makes_it(tmp_path: Path):
    folder = embedded.embedded_folder("tiny-vlm", tmp_path)
    assert folder.parent == tmp_path and len(folder.name.removeprefix("tiny-vlm-")) == 12
    assert embedded.embedded_folder("tiny-vlm", tmp_path) == folder
    with pytest.raises(ModelError, match="tiny-vlm"):
        embedded.embedded_folder("tiny-vml", tmp_path)
