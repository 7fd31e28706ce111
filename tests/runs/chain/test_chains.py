"""Chains: the recipes of the stages, what refers to earlier ones, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_core.errors import DataError, RecipeError
from rl_core.runs.chain.chains import is_chain, load_chain
from rl_core.runs.recipes import chain_names, load_recipe, recipe_names
from schemas.receipts import GateReceipt, ModelReceipt

SFT = {"name": "sft", "recipe": "smoke/sft"}
RL = {"name": "rl", "recipe": "smoke/text"}
REWARD = {"name": "reward", "recipe": "smoke/reward-model"}


def written(folder: Path, *stages: dict[str, Any], **values: Any) -> str:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"name": "mine", "stages": list(stages), **values}))
    return str(path)


def receipt(name: str, version: int, folder: str) -> ModelReceipt:
    gate = GateReceipt(
        compared_with="baseline",
        decided_by=None,
        guards=[],
        margin=0.0,
        confidence=0.5,
        passed=True,
        reason="better",
    )
    return ModelReceipt(
        name=name, version=version, model_path=folder, gate=gate, promoted=True, reason="better"
    )


def refusal(chain: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_chain(chain, overrides)
    return str(caught.value)


@pytest.mark.parametrize("name", chain_names())
def test_every_shipped_chain_loads_and_its_stages_have_recipes_of_their_own_name(name: str) -> None:
    chain = load_chain(name)
    assert is_chain(name) and name not in recipe_names()
    assert [one.recipe.name for one in chain.stages] == [
        f"{chain.name}-{one.name}" for one in chain.stages
    ]
    for stage in chain.stages:
        planned = chain.planned(stage, None)
        assert "stage:" not in planned.model_dump_json()


def test_a_stage_starts_from_the_last_policy_unless_it_says_otherwise(tmp_path: Path) -> None:
    own = {"name": "own", "recipe": "smoke/text", "overrides": {"model": {"path": "stage:sft"}}}
    draws = {"name": "draws", "recipe": "smoke/diffusion"}
    chain = load_chain(written(tmp_path, SFT, REWARD, draws, RL, own))
    assert [one.starts_from for one in chain.stages] == [None, "sft", None, "sft", "sft"]


def test_a_plan_takes_the_model_that_the_first_of_several_stages_begins_with(
    tmp_path: Path,
) -> None:
    further = ({**RL, "name": name} for name in ("more", "most"))
    chain = load_chain(written(tmp_path, SFT, RL, *further))
    assert [one.starts_from for one in chain.stages] == [None, "sft", "rl", "more"]
    first = chain.stage("sft").recipe.model.path
    assert chain.planned(chain.stage("most"), None).model.path == first


def test_references_become_a_folder_or_a_version(tmp_path: Path) -> None:
    rl = {
        **RL,
        "overrides": {
            "rewards": [{"name": "reward_model", "model": "stage:reward"}],
            "training": {"num_iterations": 1},
        },
    }
    chain = load_chain(written(tmp_path, REWARD, SFT, rl))
    stage = chain.stage("rl")
    assert dict(stage.uses) == {"model.path": "sft", "rewards.0.model": "reward"}
    trained = {
        "reward": receipt("judge", 3, "/r"),
        "sft": receipt("writer", 2, "/a folder/of: it"),
    }
    recipe = load_recipe(stage.source, stage.after(trained))
    assert recipe.model.path == "/a folder/of: it"
    assert recipe.rewards[0]["model"] == "models:/judge/3"
    assert recipe.training.num_iterations == 1


def test_a_teacher_may_be_an_earlier_stage(tmp_path: Path) -> None:
    distill = {
        "name": "small",
        "recipe": "distill",
        "overrides": ["model.path=embedded:smollm2-135m-instruct", "algorithm.teacher=stage:sft"],
    }
    stage = load_chain(written(tmp_path, SFT, distill)).stage("small")
    assert dict(stage.uses) == {"algorithm.teacher": "sft"} and stage.starts_from is None
    recipe = load_recipe(stage.source, stage.after({"sft": receipt("writer", 2, "/w")}))
    assert recipe.algorithm["teacher"] == "models:/writer/2"


def test_overrides_reach_their_stage_by_name_or_number(tmp_path: Path) -> None:
    chain = load_chain(
        written(tmp_path, SFT, RL),
        ["stages.rl.training.num_iterations=5", "stages.0.data.eval.0.log_lines=9"],
    )
    assert chain.stage("rl").recipe.training.num_iterations == 5
    assert chain.stage("sft").recipe.training.num_iterations == 2
    (rows,) = chain.stage("sft").recipe.data.eval
    assert isinstance(rows, dict) and rows["log_lines"] == 9


def test_a_recipe_and_rows_beside_the_chain_are_found(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("name: own\nmodel: {path: embedded:smollm2-135m-instruct}\n")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    data = {"train": ["rows.jsonl"], "eval": ["rows.jsonl"]}
    stage = {"name": "one", "recipe": "own.yaml", "overrides": {"data": data}}
    chain = load_chain(written(tmp_path, stage))
    assert chain.stages[0].recipe.data.train == [str(tmp_path / "rows.jsonl")]


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([{**SFT, "recipe": "smoke/sftt"}], "stage sft (smoke/sftt): unknown recipe 'smoke/sftt'"),
        ([{**SFT, "overrides": {"sft": {"max_len": 1}}}], "sft.max_len: unknown key"),
        ([{**SFT, "recpie": "x"}], "stages.0.recpie: unknown key (did you mean 'recipe'?)"),
        ([{**SFT, "overrides": ["seed"]}], "override 'seed' is not of the form"),
        ([SFT, SFT], "two stages are called 'sft'"),
        ([], "stages: "),
        ([{**SFT, "name": "S F T"}], "stages.0.name: "),
        ([{**SFT, "overrides": {"model": {"path": "stage:rl"}}}, RL], "it is the first one"),
        ([SFT, {**RL, "overrides": {"model": {"path": "stage:stf"}}}], "did you mean 'sft'?"),
        ([REWARD, {**RL, "overrides": {"model": {"path": "stage:reward"}}}], "writes nothing"),
        ([{**RL, "recipe": "smoke/chain"}], "is a chain itself"),
        ([{**SFT, "overrides": {"lora": {"export": "adapter"}}}, RL], "exports adapters alone"),
    ],
)
def test_what_is_wrong_in_a_chain_is_said_by_file_stage_and_key(
    stages: list[dict[str, Any]], said: str, tmp_path: Path
) -> None:
    text = refusal(written(tmp_path, *stages))
    assert text.startswith("mine.yaml: ") and said in text


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=1", "names no stage; write stages.NAME.key=value with NAME one of sft, rl"),
        ("stages.rll.seed=1", "names no stage (did you mean 'rl'?)"),
        ("stages.rl.sede=1", "stage rl (smoke/text): text.yaml: sede: unknown key"),
    ],
)
def test_an_override_that_reaches_no_stage_is_refused(
    override: str, said: str, tmp_path: Path
) -> None:
    assert said in refusal(written(tmp_path, SFT, RL), override)


def test_a_chain_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="this is a chain of recipes, and one recipe is wanted"):
        load_recipe(written(tmp_path, SFT))


def test_errors_of_a_stage_keep_their_kind_and_name_it(tmp_path: Path) -> None:
    chain = load_chain(written(tmp_path, SFT))
    with pytest.raises(DataError) as caught, chain.naming(chain.stages[0]):
        raise DataError("rows.jsonl:1 field prompt: missing")
    assert str(caught.value) == (
        "mine.yaml: stage sft (smoke/sft): rows.jsonl:1 field prompt: missing"
    )
