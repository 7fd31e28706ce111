"""Every example of docs/data.md, run as it stands there."""

import re
from pathlib import Path

import pytest
import yaml
from PIL import Image

from rl_core.data.check.files import check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.envs import accepted_ground_truths
from rl_core.runs.recipes import parse_recipe
from schemas.rows.contract import SchemaName

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```(jsonl|txt) (\w+)\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("suffix", "schema", "text"), EXAMPLES, ids=[f"{kind}-{suffix}" for suffix, kind, _ in EXAMPLES]
)
def test_example_is_recognised_and_accepted(
    suffix: str, schema: str, text: str, tmp_path: Path
) -> None:
    for name in ("frames/scene_01.png", "images/cat.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    path = tmp_path / f"rows.{suffix}"
    path.write_text(text, encoding="utf-8")
    folders = {"rejects_dir": tmp_path / "rejects", "memo_dir": tmp_path / "memo"}
    report = check_files([path], CheckSettings(accepted_ground_truths()), **folders)
    assert report.num_rejected == 0, report.examples
    assert report.num_rows == len(text.splitlines())
    assert list(report.schemas.values()) == [schema]


def test_every_contract_has_an_example() -> None:
    assert {schema for _, schema, _ in EXAMPLES} == {name.value for name in SchemaName}


def test_recipe_block_parses() -> None:
    texts = re.findall(r"```yaml\n(data:.*?)```", PAGE, flags=re.DOTALL)
    blend, mapped = (
        parse_recipe({"name": "page", "model": {"path": "m"}, **yaml.safe_load(text)}).data
        for text in texts
    )
    assert blend.blend == {"openai/gsm8k": 3, "other": 1}
    made = mapped.column_map.apply({"question": "2 + 2?", "answer": "So.\n#### 4"})
    assert (made["prompt"], made["reward_spec"]) == ("2 + 2?", {"ground_truth": "4"})
