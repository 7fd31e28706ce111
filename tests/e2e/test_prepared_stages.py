"""From drawn raw data through `rl-train prep` to trained weights, for the stages with pictures: one
path.

What was published is what was trained on, by digest; a run whose worker and flow were killed ends
bit-identical.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from rl_core.data.order.pair_rows import PairRows
from rl_core.data.store.changes import Condition
from rl_core.data.store.prompt_rows import load_prepared
from rl_core.data.store.publish import Sentinel, open_published
from rl_core.tracking.lineage import Lineage, trace
from tests.command import answer
from tests.e2e.conftest import Run, assert_kills_change_nothing, train_here
from tests.e2e.outcomes import is_trained, run_folder

pytestmark = pytest.mark.slow
SENTINEL = ".mmpr_ready"


@dataclass(frozen=True)
class StageRun:
    """A published stage, the recipe that names it, and the run that trained on it."""

    stage: str
    published: Path
    recipe: Path
    home: Path

    @property
    def sentinel(self) -> Sentinel:
        return open_published(self.published, SENTINEL)

    @property
    def lineage(self) -> Lineage:
        return trace(f"sqlite:///{self.home / 'mlflow.db'}", f"rl-train-{self.stage}-prepared", 1)


@pytest.fixture(scope="module")
def prep_commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The commands that `make-fixture` tells to go on with, by stage."""
    home = tmp_path_factory.mktemp("fixture")
    told = answer(home / "home", "data", "make-fixture", str(home / "fixture")).splitlines()
    commands = [shlex.split(line)[1:] for line in told if line.startswith("rl-train prep")]
    return {command[command.index("-c") + 1]: command for command in commands}


@pytest.fixture(scope="module", params=["vision", "mpo"])
def trained(
    request: pytest.FixtureRequest,
    prep_commands: dict[str, list[str]],
    tiny_vlm_dir: Path,
    ray_cluster: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> StageRun:
    stage, folder = str(request.param), tmp_path_factory.mktemp(str(request.param))
    answer(folder / "home", *prep_commands[stage])
    output = Path(prep_commands[stage][-1])
    published = output / "MMPR-v1.2" if stage == "mpo" else output
    published = published if published.is_dir() else output / "vision"
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(recipe_of(stage, published, tiny_vlm_dir)))
    train_here(recipe, folder / "home")
    return StageRun(stage, published, recipe, folder / "home")


def recipe_of(stage: str, published: Path, model_dir: Path) -> dict[str, Any]:
    """Three iterations of two steps on the published rows."""
    shared = {
        "name": f"{stage}-prepared",
        "model": {"path": str(model_dir), "frozen": []},
        "fsdp": {"param_dtype": "float32"},
        "optimizer": {"learning_rate": 0.001},
        "training": {"num_iterations": 3, "steps_per_iteration": 2, "prompts_per_step": 4},
        "placement": {"threads_per_device": 1},
    }
    if stage == "mpo":
        pairs = {"path": str(published), "eval_fraction": 0.3}
        return shared | {
            "domain": "preference",
            "data": {"train": [pairs | {"split": "train"}], "eval": [pairs | {"split": "eval"}]},
            "algorithm": {"name": "mpo"},
            "preference": {"max_length": 128},
        }
    return shared | {
        "domain": "vision",
        "data": {
            "train": [str(published / "mmpr_tiny.parquet")],
            "eval": [{"pictures": 4, "seed": 2}],
            "max_prompt_length": 128,
            "default_env_class": "geo3k",
        },
        # The model before its warm-up never answers right; this gives its replies rewards that
        # differ.
        "rewards": [{"target": "tests.e2e.scorers:LowerCase"}],
        "rollout": {"samples_per_prompt": 4, "max_new_tokens": 8},
        "evaluation": {"max_new_tokens": 8},
    }


def test_what_was_published_is_what_was_trained_on_by_digest(
    trained: StageRun, tiny_vlm_dir: Path
) -> None:
    lineage, published = trained.lineage, trained.sentinel.files
    root = trained.published
    sources = {Path(source.path): source.sha256 for source in lineage.sources}
    ours = {
        path.relative_to(root).as_posix(): sha
        for path, sha in sources.items()
        if path.is_relative_to(root)
    }
    assert ours and ours.items() <= published.items()
    assert all(check.condition is Condition.SAME for check in lineage.checks())
    train = Path(lineage.cache.path) / "train.parquet"
    items = (
        PairRows(train, lineage.cache.places) if trained.stage == "mpo" else load_prepared(train)
    )
    images = {Path(image) for item in items for image in item["env_extras"]["images"]}
    assert len(items) == lineage.cache.num_train_rows and len(images) > 8
    for image in images:
        digest = hashlib.sha256(image.read_bytes()).hexdigest()
        assert published[image.relative_to(root).as_posix()] == digest
    if trained.stage == "mpo":
        assert lineage.cache.places == {trained.sentinel.run_hash: str(root)}
    run = MlflowClient(f"sqlite:///{trained.home / 'mlflow.db'}").get_run(lineage.run_id)
    assert run.data.tags["cache_hash"] == lineage.cache.run_hash
    assert is_trained(tiny_vlm_dir, run_folder(trained.home) / "model")


@pytest.mark.long
def test_a_run_whose_worker_and_flow_were_killed_ends_bit_identical(
    trained: StageRun, start: Callable[..., Run], tmp_path: Path
) -> None:
    assert_kills_change_nothing(start, trained.recipe, tmp_path, trained.home)
