"""The score of a teacher: which one it is, and which share of its gain a student reached."""

from pathlib import Path

import pytest

from rl_core.errors import RecipeError
from rl_core.runs.recipes import load_recipe
from rl_core.runs.teacher_score import as_teacher, share_of_gain

SCORED = "evaluation.teacher=true"


def test_the_teacher_stands_in_for_the_student_and_is_loaded_once(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    block = f"algorithm={{name: distillation, teacher: {tmp_path}}}"
    recipe = load_recipe("distill", [SCORED, block])
    scored = as_teacher(recipe)
    assert scored.model.path == str(tmp_path)
    assert (scored.algorithm["name"], scored.lora) == ("grpo", None)
    assert scored.evaluation == recipe.evaluation and scored.data == recipe.data


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ("{name: grpo}", "teachers: none"),
        ("{name: self_distillation}", "teacher: the policy's base weights"),
        ("{name: distillation, teachers: {sums: some/model}}", "teachers.sums: some/model"),
        ("{name: distillation, teacher: {url: 'http://a/v1', model: b}}", "teacher: http://a/v1"),
    ],
)
def test_a_recipe_without_one_teacher_in_a_folder_is_refused(algorithm: str, said: str):
    with pytest.raises(RecipeError, match=f"evaluation.teacher scores .*{said}"):
        load_recipe("text", [SCORED, f"algorithm={algorithm}"])


def test_the_share_is_of_the_way_from_the_score_before_to_the_teachers():
    assert share_of_gain(0.5, 0.9, 0.88) == "95% of the gain from 0.500 to its 0.900"
    assert share_of_gain(0.5, 0.9, 0.4) == "-25% of the gain from 0.500 to its 0.900"
    assert share_of_gain(0.9, 0.9, 1.0) is None
