"""How a checkpoint has a model's tensors, beside the file that transformers writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from rl_core.models.export.stored_forms import Piece, stored_forms
from tests.models.conftest import KINDS
from tests.models.tiny_causal import CASES, save


def check_against_file(model: Any, file: Path) -> int:
    """Every piece is in the file, with the numbers at its place. Returns: the number of tensors
    that are stored in several."""
    stored, forms, named = load_file(file), stored_forms(model), model.state_dict()
    names = dict(model.named_parameters()).keys()
    assert names <= forms.keys() <= named.keys()
    for name, form in forms.items():
        pieces = [stored.pop(piece.name) for piece in form]
        assert [piece.shape for piece in form] == [tuple(piece.shape) for piece in pieces]
        assert torch.equal(torch.cat([one.reshape(-1) for one in pieces]), named[name].reshape(-1))
    assert not stored, "the file has tensors that no form names"
    return sum(len(form) > 1 for form in forms.values())


@pytest.mark.parametrize("case", ["tied head", "untied head", "whole, experts", "fused experts"])
def test_a_language_model_is_stored_as_its_forms_say(
    case: str, tiny_model_dir: Path, tmp_path: Path
):
    folder = save(CASES[case], tiny_model_dir, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    num_cut = check_against_file(model, folder / "model.safetensors")
    # Two layers, with a matrix of all experts' gates and inputs, and one of their outputs.
    assert num_cut == (4 if "experts" in case else 0)


def test_experts_lie_one_after_the_other(tiny_model_dir: Path, tmp_path: Path):
    folder = save(CASES["experts of another layout"], tiny_model_dir, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert check_against_file(model, folder / "model.safetensors") == 4
    prefix = "model.layers.1.block_sparse_moe.experts"
    assert stored_forms(model)["model.layers.1.mlp.experts.gate_up_proj"][:3] == (
        Piece(f"{prefix}.0.w1.weight", (48, 32)),
        Piece(f"{prefix}.0.w3.weight", (48, 32)),
        Piece(f"{prefix}.1.w1.weight", (48, 32)),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_sees_is_stored_under_the_names_that_its_forms_say(kind: str, tmp_path: Path):
    KINDS[kind].make().save_pretrained(tmp_path)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert check_against_file(model, tmp_path / "model.safetensors") == 0


def test_numbers_in_another_order_have_no_form(monkeypatch: pytest.MonkeyPatch):
    from transformers import core_model_loading

    monkeypatch.setattr(
        core_model_loading,
        "revert_weight_conversion",
        lambda model, tensors: {f"{name}.t": one.T.clone() for name, one in tensors.items()},
    )
    model = torch.nn.Linear(3, 2, bias=False)
    assert stored_forms(model) == {}  # pyright: ignore[reportArgumentType]
