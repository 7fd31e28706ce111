"""Versions that a version was made with, read from the recipes of a real MLflow database."""

from pathlib import Path

import yaml

from rl_core.tracking.ancestors import ancestors
from rl_core.tracking.model_versions import RegisteredVersion, find_version
from tests.tracking.test_registry_and_lineage import register


def test_a_version_names_its_start_its_reward_models_and_teachers_and_theirs(
    open_run, tracking, tmp_path: Path
) -> None:
    recipes: dict[str, dict] = {}

    def registered(prefix: str, recipe: dict) -> RegisteredVersion:
        name = tracking.fresh(prefix)
        folder = tmp_path / "it's here" / name
        folder.mkdir(parents=True)
        register(open_run(), name, folder)
        recipes[name] = recipe
        return find_version(tracking.uri, name, 1)

    base = registered("base", {"model": {"path": "embedded:x"}, "data": {"train": ["a/b.jsonl"]}})
    judge = registered("judge", {"model": {"path": str(tmp_path / "elsewhere")}})
    start = {"model": {"path": base.tags["model_dir"]}}
    sft = registered("sft", start)
    last = registered(
        "rl",
        {
            "model": {"path": sft.tags["model_dir"]},
            "rewards": [{"name": "reward_model", "model": f"models:/{judge.name}/1"}],
            "algorithm": {"teacher": {"path": "models:/gone/3"}},
        },
    )
    found = ancestors(tracking.uri, last, lambda one: yaml.safe_dump(recipes[one.name]))
    assert {(one.name, one.version, one.key, one.of) for one in found} == {
        (sft.name, 1, "model.path", f"{last.name} v1"),
        (judge.name, 1, "rewards.0.model", f"{last.name} v1"),
        ("gone", 3, "algorithm.teacher.path", f"{last.name} v1"),
        (base.name, 1, "model.path", f"{sft.name} v1"),
    }
    assert found[-1].name == base.name, "the nearest come first"
    assert "no longer registered" in str(next(one for one in found if one.name == "gone"))
