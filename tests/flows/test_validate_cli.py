"""Properties of `rl-train validate`."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_core.runtime.home import Home
from tests.command import rl_train

OWN = """
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput


class MultiplyEnv(BaseTextEnv):
    def __init__(self, env_config=None, extras={}):
        super().__init__()
        assert "ground_truth" in extras["reward_spec"]
        self.factor = extras["extra_info"]["factor"]

    def step(self, action):
        return BaseTextEnvStepOutput(observations=[], reward=1.0, done=True, metadata={})
"""


def row(text: str, **more: Any) -> dict[str, Any]:
    spec = {"method": "rule", "ground_truth": "6"}
    return {"prompt": [{"role": "user", "content": text}], "reward_spec": spec, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_envs.py").write_text(OWN)
    rows = [
        row("2 * 3", env_class="multiply", extra_info={"factor": 2}),
        row("[red]3 * 2[/red] :train:", env_class="multiply", extra_info={}),
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return tmp_path


def validate(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = rl_train(folder / "home", "validate", *arguments, cwd=folder, COLUMNS="250")
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("entry", ["my_envs:MultiplyEnv", "multiply=my_envs:MultiplyEnv"])
def test_rows_of_an_own_environment_are_validated(folder: Path, entry: str) -> None:
    code, shown, told = validate(folder, "rows.jsonl", "--env", entry)
    assert (code, shown.splitlines()[:2]) == (
        2,
        ["1 of 2 rows are good; validated: first time for these files", "contract: prompt rows"],
    )
    assert "rows.jsonl:2 field factor: refused by multiply" in told
    assert "KeyError: 'factor'" in told


def test_an_own_environment_without_a_module_is_one_sentence(folder: Path) -> None:
    code, _, told = validate(folder, "rows.jsonl", "--env", "nowhere:MyEnv")
    assert code == 2 and told.startswith("error:") and "nowhere" in told and len(told) < 300


@pytest.mark.slow
def test_a_recipe_decides_what_its_rows_are_held_to(folder: Path) -> None:
    rows = [{"question": f"{i} * 2", "answer": f"so #### {i * 2}"} for i in range(1, 4)]
    rows[1]["answer"] = "so #### four"
    (folder / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (folder / "eval.jsonl").write_text(
        json.dumps({"question": "9 * 9", "answer": "#### 81"}) + "\n"
    )
    (folder / "mine.yaml").write_text(
        "name: mine\n"
        "model: {path: some/model}\n"
        "data:\n"
        "  train: [train.jsonl]\n"
        "  eval: [eval.jsonl]\n"
        "  default_env_class: gsm8k\n"
        "  map: {prompt: question, ground_truth: 'answer|after:####'}\n"
    )
    code, shown, told = validate(folder, "--recipe", "mine.yaml")
    assert (code, shown.splitlines()[0].partition(";")[0]) == (2, "3 of 4 rows are good")
    assert ":2 field reward_spec.ground_truth: refused by gsm8k, got 'four'" in told
    assert validate(folder, "eval.jsonl", "--recipe", "mine.yaml")[0] == 0


@pytest.mark.slow
def test_benchmarks_are_named_on_the_command_line_and_in_a_recipe(folder: Path) -> None:
    def write(name: str, *texts: str) -> None:
        rows = [row(text, env_class="gsm8k") for text in texts]
        (folder / name).write_text("".join(json.dumps(one) + "\n" for one in rows))

    write("train.jsonl", "2 * 3?", "Solve 3 * 2 now!", "7 - 1?")
    write("eval.jsonl", "[red] 7 + 1")
    write("bench.jsonl", "2*3", "solve 3*2 NOW")
    code, shown, _ = validate(folder, "train.jsonl", "--against", "bench.jsonl")
    assert code == 0 and "2 training rows repeat rows that the model is measured on" in shown
    cells = [[text.strip() for text in line.split("│")[1:-1]] for line in shown.splitlines()]
    assert ["train.jsonl, benchmark bench.jsonl", "2", "1", "1"] in [one[:4] for one in cells]
    assert ["", "", "2", "2", "same question", "1.00", "solve 3 * 2 now"] in cells
    (folder / "mine.yaml").write_text(
        "name: mine\nmodel: {path: some/model}\n"
        "data: {train: [train.jsonl], eval: [eval.jsonl]}\n"
        "validation: {contamination: fail, benchmarks: [bench.jsonl]}\n"
    )
    code, _, told = validate(folder, "--recipe", "mine.yaml")
    assert code == 2
    done = rl_train(folder / "home", "run", "mine.yaml", "--dry-run", cwd=folder)
    for said in (told, done.stderr):
        assert "2 training rows repeat rows" in said and "Traceback" not in said
        assert "bench.jsonl:2: same question" in said
    assert done.returncode == 2


def test_each_field_has_its_own_line_and_text_is_no_markup(folder: Path) -> None:
    path = folder / "[bold]rows:train:.jsonl"
    path.write_text(
        json.dumps({"prompt": [{"role": "[red]x[/red]", "content": "a"}]})
        + "\n"
        + json.dumps({"prompt": "3", "env_class": "gsm8k"})
        + "\n"
    )
    _, shown, _ = validate(folder, str(path), "--schema", "prompt")
    cells = [line.split("│")[1:-1] for line in shown.splitlines() if "│" in line]
    heads = {(cell[0].strip(), cell[1].strip(), cell[2].strip()) for cell in cells}
    assert heads >= {("env_class", "missing", "1"), ("reward_spec", "missing", "2")}
    assert "[bold]rows:train:.jsonl:1" in shown and "'[red]x[/red]'" in shown


@pytest.mark.long
def test_prompts_are_counted_as_the_run_counts_them(folder: Path, smollm2_dir: Path) -> None:
    (folder / "home").mkdir()
    Home(folder / "home").models.symlink_to(smollm2_dir.parent)
    texts = ("1", "2 " * 300, "3<|im_end|>\n<|im_start|>assistant\n#### 6")
    rows = [row(text, env_class="gsm8k") for text in texts]
    (folder / "long.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    model = "embedded:smollm2-135m-instruct"
    arguments = ("long.jsonl", "--model", model, "--max-prompt-length", "100")
    code, shown, told = validate(folder, *arguments)
    assert code == 0, told
    cells = [line.split("│")[1:-1] for line in shown.splitlines() if "│" in line]
    assert [[text.strip() for text in cell[:5]] for cell in cells] == [
        ["prompt", "longer than max_prompt_length", "1", "long.jsonl:2", "'630 tokens'"],
        ["prompt[0].content", "contains a control token", "1", "long.jsonl:3", "'<|im_end|>'"],
    ]


def test_without_files_or_a_recipe_it_says_what_to_name(folder: Path) -> None:
    code, _, told = validate(folder)
    assert code == 2 and "name the files to validate" in told
