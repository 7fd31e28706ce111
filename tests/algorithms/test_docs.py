"""`docs/algorithms.md` names every plug-in, its recipes resolve, its files exist, and its example
runs."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rl_core.algorithms import algorithms
from rl_core.algorithms.advantages import advantage_estimators
from rl_core.algorithms.losses import policy_losses

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in DOCS.splitlines()
    if line.startswith("| `")
]

USE = """
import torch
from rl_core.algorithms import Denominators, algorithms
cls, config = algorithms.resolve({"name": "logcosh", "loss": {"aggregation": "token-sum"}}, "algorithm")
ones = torch.ones(1, 2)
loss, metrics = cls(config).loss(-1 * ones, -1 * ones, 3 * ones, ones, None, None, Denominators(2, 1, 2))
# On-policy the leash is 0: twice -A log pi = 3.
print(loss.item(), metrics["leash"].result())
loss, metrics = cls(config).loss(-2 * ones, -1 * ones, 3 * ones, ones, None, None, Denominators(2, 1, 2))
print(loss.item(), metrics["leash"].result())
"""  # noqa: E501


def test_the_table_holds_every_preset():
    assert sorted(row[0].strip("`") for row in ROWS) == algorithms.names()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_recipe_of_a_preset_resolves_and_its_files_exist(row: list[str]):
    block = yaml.safe_load(row[4].strip("`"))
    assert block["name"] == row[0].strip("`")
    algorithms.resolve(block, "algorithm")
    for name in re.findall(r"`([\w/]+\.py)`", row[3]):
        assert (ROOT / "rl_core" / name).exists() or (
            ROOT / "rl_core" / "algorithms" / name
        ).exists(), name


def test_every_advantage_and_loss_is_named():
    for name in [*advantage_estimators.names(), *policy_losses.names()]:
        assert re.search(rf"\b{name}\b", DOCS), name


def test_the_full_block_resolves():
    block = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", DOCS, re.S)[0])
    algorithms.resolve(block["algorithm"], "algorithm")


def test_adding_an_algorithm_is_one_file_that_runs(tmp_path: Path):
    code = re.findall(r"```python\n(.*?)```", DOCS, re.S)[0]
    assert sum(bool(line.strip()) for line in code.splitlines()) == 15
    (tmp_path / "logcosh.py").write_text(code, encoding="utf-8")
    # In a process of its own, since a registration stays for the life of one.
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import logcosh\n{USE}",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    leash = math.log(math.cosh(1.0))
    assert [float(number) for number in done.stdout.split()] == pytest.approx(
        [6.0, 0.0, 12 + 2 * leash, leash]
    )
