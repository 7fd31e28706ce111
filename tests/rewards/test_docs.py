"""The scorer in docs/rewards.md works as it stands, and the page names every scorer."""

import re
from pathlib import Path

import yaml

from rl_core.models.decoding.request import StopReason
from rl_core.rewards import Sample, Scorer, Unscored, reward_scorers
from rl_core.runs.recipes import parse_recipe

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def test_the_scorer_of_the_page_scores():
    namespace: dict[str, type[Scorer]] = {}
    exec(block("python"), namespace)
    scorer = namespace["Shouting"](Scorer.Config())
    loud, none = scorer.score([Sample("?", ("HEy 1",)), Sample("?", ("123",))])
    assert loud == 2 / 3
    assert none == Unscored("the reply has no letters")


def test_the_recipe_of_the_page_is_valid():
    recipe = {"name": "page", "model": {"path": "x"}, "data": {"train": ["a"], "eval": ["b"]}}
    parsed = parse_recipe(recipe | yaml.safe_load(block("yaml")))
    assert [entry["name"] for entry in parsed.rewards] == ["format", "length", "remote"]


def test_the_page_names_every_scorer_and_stop_reason():
    for name in [*reward_scorers.names(), *StopReason]:
        assert f"`{name}`" in PAGE, name
