"""docs/environments.md is run, not believed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rl_core.envs import environments

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found
    lines = [line for line in found[1].splitlines() if line.strip()]
    assert len(lines) <= 40
    (tmp_path / "my_env.py").write_text(found[1], encoding="utf-8")
    return tmp_path


def test_the_environment_of_the_page_plays_its_conversation(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "my_env.py"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "'content': '42'" in done.stdout and "'reward': 1.0, 'done': True" in done.stdout


def test_a_recipe_with_it_validates_its_rows_from_the_folder_of_the_module(folder: Path) -> None:
    block = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert block
    for name, question in (("rows.jsonl", "40+2?"), ("held-out.jsonl", "41+1?")):
        row = {
            "prompt": [{"role": "user", "content": question}],
            "env_class": "sums",
            "reward_spec": {"ground_truth": 42},
        }
        (folder / name).write_text(json.dumps(row))
    values = yaml.safe_load(
        (ROOT / "deployments" / "recipes" / "smoke" / "text.yaml").read_text(encoding="utf-8")
    )
    values |= {"environments": yaml.safe_load(block[1])["environments"]}
    values["data"] = {**values["data"], "train": ["rows.jsonl"], "eval": ["held-out.jsonl"]}
    (folder / "mine.yaml").write_text(yaml.safe_dump(values))
    command = [
        sys.executable,
        "-c",
        "import sys; sys.path.remove(''); from flows.cli import main; main()",
    ]
    done = subprocess.run(
        [*command, "run", "mine.yaml", "--dry-run"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "my_env:SumEnv" in done.stdout


def test_the_page_lists_every_environment() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(listed) == environments.names()
