"""The sections of a blend file."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_core.data.stages.blend import Split, read_blend
from rl_core.errors import DataError


def written(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "data_blend_raw.json"
    path.write_text(json.dumps(document))
    return path


def datasets(*names: str) -> dict[str, Any]:
    return {"datasets": [{"name": name, "path": f"{name}.jsonl"} for name in names]}


def test_a_val_beside_datasets_is_held_out_and_the_rest_trained_on(tmp_path: Path) -> None:
    parts = read_blend(written(tmp_path, {**datasets("t"), "val": datasets("v")}))
    assert [(part.entry.name, part.split) for part in parts] == [
        ("v", Split.VAL),
        ("t", Split.TRAIN),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": datasets("t")}, 'both "datasets" and "train"'),
        ({"vall": datasets("v")}, "unknown key 'vall'"),
        ({"val": {**datasets("v"), "x": 1}}, "unknown key val.x"),
        ({"val": []}, "val.datasets: expected a list of datasets"),
    ],
)
def test_sections_nobody_knows_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_blend(written(tmp_path, {**datasets("t"), **change}))
