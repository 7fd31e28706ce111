"""The page that asks two models at once: real tiny models behind the real application."""

import asyncio
import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from rl_core.demo.app import build_app
from rl_core.demo.contestants import Contestant, Demo, load_demo
from rl_core.demo.painter import Painter
from rl_core.demo.questions import Answer, Question
from rl_core.demo.speaker import Speaker
from rl_core.errors import ModelError, RecipeError
from rl_core.runs.recipes import load_recipe
from rl_core.runtime.home import Home
from schemas.domains import Page
from schemas.recipe import Recipe


def recipe_of(model: Path, **changes: Any) -> Recipe:
    data = {"train": ["a.jsonl"], "eval": ["b.jsonl"]}
    return Recipe.model_validate(
        {"name": "mine", "model": {"path": str(model)}, "data": data, **changes}
    )


def answers(demo: Demo, requests: list[tuple[int, Any]]) -> list[httpx.Response]:
    """What the application answers to bodies for a contestant, one after the other."""

    async def talk() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=build_app(demo))
        async with httpx.AsyncClient(transport=transport, base_url="http://demo") as client:
            return [
                await client.post(f"/ask/{number}", content=json.dumps(body))
                for number, body in requests
            ]

    return asyncio.run(talk())


def hello(**changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "1+2="}], **changes}


def chat(answer: Callable[[Question], Answer]) -> Demo:
    return Demo(
        Page.CHAT,
        [Contestant("champion <b>", answer), Contestant("base", answer)],
        max_new_tokens=6,
    )


def test_a_language_model_answers_as_it_decodes(tiny_model_dir: Path):
    speaker = Speaker(str(tiny_model_dir), recipe_of(tiny_model_dir), "cpu")
    asked = [
        (0, hello()),
        (1, hello()),
        (0, hello(seed=1, temperature=1.0)),
        (0, hello(seed=1, temperature=1.0)),
    ]
    greedy, same, drawn, again = (one.json() for one in answers(chat(speaker.answer), asked))
    assert greedy["text"] == same["text"]
    assert drawn["text"] == again["text"] != greedy["text"]
    assert len(speaker.tokenizer(greedy["text"])["input_ids"]) <= 6
    assert greedy["image"] == ""


def test_replies_are_chosen_by_the_sampling_settings_of_the_recipe(tiny_model_dir: Path):
    def said(changes: dict[str, Any], temperature: float) -> str:
        speaker = Speaker(str(tiny_model_dir), recipe_of(tiny_model_dir, **changes), "cpu")
        (one,) = answers(chat(speaker.answer), [(0, hello(seed=1, temperature=temperature))])
        return one.json()["text"]

    greedy, drawn = said({}, 0.0), said({}, 1.0)
    assert said({"rollout": {"top_k": 1}}, 1.0) == greedy != drawn
    assert said({"evaluation": {"temperature": 0.7, "top_k": 1}}, 1.0) == greedy
    assert said({"evaluation": {"temperature": 0.7}, "rollout": {"top_k": 1}}, 1.0) == drawn
    assert said({"evaluation": {"temperature": 0.7, "top_k": 1}}, 0.0) == greedy
    assert said({"rollout": {"stop": [greedy[:1]]}}, 0.0) != greedy, "it ends at the string"
    assert said({"rollout": {"stop": [greedy[:1]]}, "evaluation": {"stop": []}}, 0.0) == greedy
    long = {"min_new_tokens": 9, "max_new_tokens": 9, "repetition_penalty": 100.0}
    assert said({"evaluation": long}, 0.0) != greedy, "the page's limit of 6 holds"


def test_a_diffusion_model_draws_from_the_seed(tiny_sd3_dir: Path):
    recipe = load_recipe(
        "smoke/diffusion", [f"model.path={tiny_sd3_dir}", "diffusion.eval_steps=2"]
    )
    painter = Painter(str(tiny_sd3_dir), recipe, "cpu")
    demo = Demo(
        Page.DRAW, [Contestant(name, painter.answer) for name in ("one", "other")], max_new_tokens=1
    )
    first, again, other = answers(demo, [(0, hello()), (0, hello()), (0, hello(seed=1))])
    pictures = [base64.b64decode(one.json()["image"]) for one in (first, again, other)]
    assert Image.open(io.BytesIO(pictures[0])).size == (
        recipe.diffusion.width,
        recipe.diffusion.height,
    )
    assert pictures[0] == pictures[1] != pictures[2]


def test_the_whole_conversation_is_asked_and_nonsense_is_refused():
    asked: list[Question] = []

    def remember(question: Question) -> Answer:
        asked.append(question)
        return Answer(text="said", is_cut=True)

    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    bad = [
        {"messages": []},
        hello(temperature=-1),
        hello(more=1),
        {"messages": [{"role": "boss", "content": "x"}]},
    ]
    good, *refused = answers(
        chat(remember), [(0, {"messages": turns, "seed": 3}), *((0, body) for body in bad)]
    )
    assert (good.json()["text"], good.json()["is_cut"]) == ("said", True)
    assert asked == [Question(turns, 3, 0.0, 6)]
    assert [one.status_code for one in refused] == [422] * len(bad)
    assert answers(chat(remember), [(2, hello())])[0].status_code == 404


def test_an_error_of_a_model_reaches_the_page():
    def fail(_: Question) -> Answer:
        raise ModelError("the prompt cannot be drawn")

    (answer,) = answers(chat(fail), [(0, hello())])
    assert (answer.status_code, answer.json()) == (422, {"error": "the prompt cannot be drawn"})


def test_the_page_asks_nothing_from_outside_and_names_both():
    async def page() -> str:
        transport = httpx.ASGITransport(app=build_app(chat(lambda _: Answer())))
        async with httpx.AsyncClient(transport=transport, base_url="http://demo") as client:
            return (await client.get("/")).text

    text = asyncio.run(page())
    assert "champion &lt;b&gt;" in text and "<b>" not in text.split("<script>")[0]
    assert "http://" not in text and "https://" not in text
    assert "Chat with both" in text


def test_a_folder_stands_against_what_its_training_began_with(tiny_model_dir: Path, tmp_path: Path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        f"name: mine\nmodel: {{path: {tiny_model_dir}}}\ndata: {{train: [a.jsonl], eval: "
        "[b.jsonl]}\nevaluation: {temperature: 0.5}\n"
    )
    demo = load_demo(str(tiny_model_dir), None, str(recipe), "cpu", Home(tmp_path))
    assert demo.page is Page.CHAT
    assert demo.temperature == 0.5
    assert [one.name for one in demo.contestants] == [
        str(tiny_model_dir),
        f"before training ({tiny_model_dir})",
    ]
    with pytest.raises(RecipeError, match="no page for the domain vision"):
        load_demo(str(tiny_model_dir), None, "smoke/vision", "cpu", Home(tmp_path))
