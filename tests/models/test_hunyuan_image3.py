"""HunyuanImage-3.0 is recognised; its code runs only where the recipe says so, and what is missing
is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_core.errors import ModelError
from rl_core.models.unified.bundle import load_unified, plan_tokenizer
from rl_core.models.unified.families import unified_class
from rl_core.models.unified.hunyuan_image3 import HunyuanImage3
from rl_core.runs.recipes import load_recipe
from schemas.recipe import ModelConfig

RAN = "import pathlib\npathlib.Path(r'{mark}').write_text('ran')\n"
CLASS = """
class HunyuanImage3ForCausalMM:
    def load_tokenizer(self, tokenizer): ...
    def prepare_model_inputs(self, prompt=None, mode="gen_text"): ...
    def forward(self, input_ids=None, mode="gen_text"): ...
"""


def folder(tmp_path: Path, code: str, name: str = "HunyuanImage-3") -> tuple[str, Path]:
    """A folder as the published one, without weights. Returns: with it, a file that its code writes
    when it runs."""
    path, mark = tmp_path / name, tmp_path / "mark"
    path.mkdir()
    config = {
        "architectures": ["HunyuanImage3ForCausalMM"],
        "auto_map": {"AutoModelForCausalLM": "hunyuan.HunyuanImage3ForCausalMM"},
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "hunyuan.py").write_text(RAN.format(mark=mark) + code)
    return str(path), mark


def refusal(path: str, *, trusted: bool) -> str:
    with pytest.raises(ModelError) as caught:
        load_unified(path, ModelConfig(path="the/model", trust_remote_code=trusted))
    return str(caught.value)


def test_without_consent_no_code_of_the_folder_runs(tmp_path: Path):
    path, mark = folder(tmp_path, CLASS)
    assert "the/model: HunyuanImage-3.0 is Python code" in refusal(path, trusted=False)
    with pytest.raises(ModelError, match=r"set model\.trust_remote_code: true"):
        plan_tokenizer(path, ModelConfig(path="the/model"))
    assert not mark.exists()


def test_with_consent_the_class_is_imported_and_what_is_missing_is_said(tmp_path: Path):
    path, mark = folder(tmp_path, CLASS)
    said = refusal(path, trusted=True)
    assert (
        "HunyuanImage3ForCausalMM can be imported, but cannot be trained: it is written for "
        "transformers 4.57.1" in said
    )
    assert mark.read_text() == "ran"


def test_packages_that_its_code_needs_are_named(tmp_path: Path):
    path, mark = folder(tmp_path, "import a_package_that_nobody_has\n" + CLASS)
    assert "its code cannot be imported: This modeling file requires" in (
        said := refusal(path, trusted=True)
    )
    assert "a_package_that_nobody_has" in said and "transformers 4.57.1" in said
    assert not mark.exists()


def test_other_code_and_a_name_that_cannot_be_imported_are_refused(tmp_path: Path):
    path, _ = folder(tmp_path, CLASS.replace("prepare_model_inputs", "prepare"))
    assert "has no prepare_model_inputs; this is not the published code" in refusal(
        path, trusted=True
    )
    dotted, mark = folder(tmp_path, CLASS, "HunyuanImage-3.0")
    mark.unlink()
    assert refusal(dotted, trusted=True).endswith("dot in its name; call it HunyuanImage-3-0")
    assert not mark.exists()


def test_its_recipe_asks_for_consent():
    recipe = load_recipe("scale/unified-hunyuan-image3")
    assert recipe.model.trust_remote_code is False
    assert unified_class("HunyuanImage3ForCausalMM") is HunyuanImage3
