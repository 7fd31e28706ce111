"""Tiny Wan models, text to video and image to video, through the whole flow: trained, and their
videos shown."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from PIL import Image
from prefect.settings import PREFECT_API_URL

from tests.e2e.conftest import train_here
from tests.e2e.outcomes import is_trained, logged_metrics, run_folder
from tests.e2e.prefect_api import PrefectApi
from tests.models import tiny_videos
from tests.models.tiny_families import made

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]

HEIGHT, WIDTH, NUM_FRAMES, FPS = 32, 48, 5, 4
WORDINGS = ("a photo of {}", "{} by hand", "{} drawn by hand", "the {} digit")
HELD_OUT = ("a photo of {} drawn by hand", "a {} digit")
COLOURS = ("red", "blue")
PIPELINES: dict[str, Callable[[], Any]] = {
    "wan": tiny_videos.wan,
    "wan_image": tiny_videos.wan_image,
}


def write_prompts(path: Path, wordings: tuple[str, ...], *, with_image: bool) -> str:
    """A row for every wording and colour, where wanted with a picture of that colour to begin
    at."""
    rows: list[dict[str, Any]] = []
    for colour in COLOURS:
        image = path.with_name(f"{colour}.png")
        Image.new("RGB", (WIDTH, HEIGHT), colour).save(image)
        refs = [{"modality": "image", "role": "condition", "uri": image.name}] if with_image else []
        rows += [{"prompt": wording.format(colour), "media_refs": refs} for wording in wordings]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_tiny_wan_trains_through_the_flow_and_its_videos_are_shown(
    name: str, tmp_path: Path
) -> None:
    model, home, with_image = tmp_path / "model", tmp_path / "home", name == "wan_image"
    made(PIPELINES[name]).save_pretrained(model)
    values: dict[str, Any] = {
        "name": name.replace("_", "-"),
        "domain": "diffusion",
        "model": {"path": str(model)},
        "lora": {"rank": 2, "alpha": 4},
        "fsdp": {"param_dtype": "float32"},
        "optimizer": {"learning_rate": 1e-3},
        "data": {
            "train": [write_prompts(tmp_path / "train.jsonl", WORDINGS, with_image=with_image)],
            "eval": [write_prompts(tmp_path / "eval.jsonl", HELD_OUT, with_image=with_image)],
        },
        "rewards": [
            {"name": "video_frames", "key": "colour", "scorer": {"name": "colour"}, "num_frames": 3}
        ],
        "algorithm": {"name": "dance_grpo"},
        "diffusion": {
            "height": HEIGHT,
            "width": WIDTH,
            "num_frames": NUM_FRAMES,
            "num_steps": 3,
            "eval_steps": 2,
            "guidance_scale": 2.0,
            "share_noise": True,
            "video_fps": FPS,
        },
        "rollout": {"samples_per_prompt": 2},
        "training": {"num_iterations": 1, "steps_per_iteration": 2, "prompts_per_step": 2},
        "placement": {"threads_per_device": 1},
    }
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(values))
    train_here(recipe, home)
    metrics = logged_metrics(home)
    assert len(metrics["grad_norm"]) == 2 and min(metrics["grad_norm"]) > 0 < min(
        metrics["reward_std"]
    )
    assert is_trained(model, run_folder(home) / "model")
    assert_videos_are_logged(home)
    assert_sheet_is_shown(home, recipe)


def assert_videos_are_logged(home: Path) -> None:
    """In MLflow, of both evaluations, as many frames as asked for, each as long as asked for."""
    uri = f"sqlite:///{home / 'mlflow.db'}"
    run_id = json.loads((run_folder(home) / "run.json").read_text())["mlflow_run_id"]
    client = MlflowClient(uri)
    for label in ("baseline", "final"):
        names = [item.path for item in client.list_artifacts(run_id, f"samples/made-{label}")]
        assert len(names) == len(HELD_OUT) * len(COLOURS)
        local = download_artifacts(run_id=run_id, artifact_path=names[0], tracking_uri=uri)
        with Image.open(local) as video:
            assert (video.format, video.size, video.n_frames) == (
                "WEBP",
                (WIDTH, HEIGHT),
                NUM_FRAMES,
            )
            video.load()
            assert video.info["duration"] == 1000 / FPS


def assert_sheet_is_shown(home: Path, recipe: Path) -> None:
    """In Prefect, the very picture of frames before and after that the run made."""
    of_run = {
        "flow_runs": {"name": {"any_": [f"rl-train {recipe}"]}},
        "artifacts": {"key": {"any_": ["sample-pictures"]}},
    }
    (artifact,) = PrefectApi(str(PREFECT_API_URL.value())).post("artifacts/filter", of_run)
    sheet = run_folder(home) / "samples" / "pictures-final.png"
    assert base64.b64encode(sheet.read_bytes()).decode() in artifact["data"]
