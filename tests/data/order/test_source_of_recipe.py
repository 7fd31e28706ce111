"""A recipe chooses what draws its prompts: by name, or by the import path of a class."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_core.builtin.data.builtin_rows import media_rows, question_rows
from rl_core.data.order.default_source import DefaultDataSource
from rl_core.data.order.media_source import MultimodalRLDataSource
from rl_core.data.order.prompt_source import PromptSource
from rl_core.data.order.source_of_recipe import training_source
from rl_core.errors import RecipeError
from rl_core.runs.recipes import load_recipe, parse_recipe
from rl_core.runs.run_folder import run_key
from schemas.sections.section import Section

ITEMS = [{"uid": f"row-{number}", "prompt": str(number)} for number in range(7)]
HERE = f"{__name__}:Backwards"


class Backwards:
    """Rows from the last to the first, so many at a stride."""

    class Config(Section):
        """How it goes."""

        stride: int = 1
        """Rows from one to the next."""

    def __init__(self, items: Any, batch_size: int, seed: int, config: Config) -> None:
        self.items, self.batch_size, self.stride, self.place = items, batch_size, config.stride, 0

    def next_batch(self) -> list[Any]:
        places = [self.place + number * self.stride for number in range(self.batch_size)]
        self.place += self.batch_size * self.stride
        return [self.items[-1 - place % len(self.items)] for place in places]

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Stranger(Backwards):
    """A source that is made of other things."""

    def __init__(self, path: str) -> None:
        self.path = path


def source(block: dict[str, Any], items: list[dict[str, Any]] = ITEMS) -> Any:
    return training_source(items, 3, 5, None, None, block)


def test_a_recipe_without_a_source_has_that_of_its_domain():
    assert load_recipe("smoke/text").data_source == {"name": "prompts"}
    for name in ("smoke/diffusion", "smoke/pe", "smoke/unified"):
        assert load_recipe(name).data_source == {"name": "multimodal"}


def test_both_sources_of_files_draw_and_resume_alike():
    plain, media = source({"name": "prompts"}), source({"name": "multimodal"})
    assert (type(plain), type(media)) == (PromptSource, MultimodalRLDataSource)
    drawn = [plain.next_batch() for _ in range(5)]
    assert [media.next_batch() for _ in range(5)] == drawn
    assert media.state_dict() == plain.state_dict()
    assert plain.state_dict() == {"epoch": 2, "position": 3, "seed": 5, "num_items": 7}


def test_the_default_source_goes_through_its_rows_in_order():
    drawn = source({"name": "default"})
    assert isinstance(drawn, DefaultDataSource)
    assert [item["prompt"] for _ in range(3) for item in drawn.next_batch()] == list("012345601")


def test_a_class_of_ones_own_gets_its_config():
    drawn = source({"target": HERE, "stride": 2})
    assert [item["prompt"] for item in drawn.next_batch()] == ["6", "4", "2"]


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ({"name": "multimodel"}, "unknown data source 'multimodel' (did you mean 'multimodal'?)"),
        ({"target": "json:JSONDecoder"}, "JSONDecoder has no method next_batch, state_dict"),
        ({"target": HERE, "strid": 2}, "data.source.strid: unknown key (did you mean 'stride'?)"),
        ({"name": "prompts", "target": HERE}, "not both 'prompts' and"),
    ],
)
def test_a_source_that_cannot_be_used_is_refused_before_a_run(
    block: dict[str, Any], complaint: str
):
    with pytest.raises(RecipeError) as refused:
        load_recipe("smoke/text", [f"data.source={json.dumps(block)}"])
    assert complaint in str(refused.value)


def test_a_source_made_of_other_things_is_refused():
    with pytest.raises(RecipeError, match=r"Stranger cannot be made of rows.* argument"):
        source({"target": f"{__name__}:Stranger"})


def test_a_source_of_ones_own_is_no_blend():
    with pytest.raises(RecipeError, match=r"data.curriculum orders the prompts itself"):
        load_recipe("smoke/text", [f"data.source.target={HERE}", "data.curriculum={}"])


def test_the_default_source_needs_no_file_and_names_its_rows():
    recipe = parse_recipe(
        {"name": "r", "model": {"path": "x"}, "data": {"source": {"name": "default"}}}
    )
    assert (recipe.data.train, recipe.data.eval) == ([{"builtin": "train"}], [{"builtin": "eval"}])
    kept = load_recipe("smoke/diffusion", ["data.source.name=default"]).data
    assert kept.train == [{"builtin": "train"}]
    assert kept.eval == load_recipe("smoke/diffusion").data.eval


def test_there_are_no_built_in_pairs():
    with pytest.raises(RecipeError, match="there are no built-in pairs"):
        load_recipe("smoke/mpo", ["data.source.name=default"])


def test_held_out_built_in_rows_are_others():
    for made in (media_rows, question_rows):
        train, held_out = (
            [json.dumps(row["prompt"]) for row in made(s)] for s in ("train", "eval")
        )
        assert train and held_out and not {*train} & {*held_out}


def test_an_unset_source_is_no_part_of_a_runs_identity(tmp_path: Path):
    keys = [
        run_key(load_recipe("smoke/text", changes), "data")
        for changes in ((), ("data.source=null",), ("data.source.name=default",))
    ]
    assert keys[0] == keys[1] != keys[2]
