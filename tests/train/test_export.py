"""An exported folder loads with the ordinary tools and says what the trained policy says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.data_proto import DataProto
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.ranks.rank_info import RankInfo
from schemas.recipe import EmaFullConfig, EmaLoraConfig, ExportKind, LoraConfig
from tests.train.jobs import LORA, Setup, batch, log_probs, make_both, train_steps
from tests.train.ranks import Ranks

ADAPTER = LoraConfig(rank=4, alpha=8, export=ExportKind.ADAPTER)
MERGED: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora": LORA},
    "average": {"ema": EmaFullConfig(decay=0.5)},
    "average not evaluated": {"ema": EmaFullConfig(decay=0.5, evaluate=False)},
    "averaged adapter": {"ema": EmaLoraConfig(decay=0.5), "lora": LORA},
}


def exported(rank_info: RankInfo, setup: Setup, folder: str) -> dict[str, Tensor]:
    """Train, export, and say what start, trained weights and average give."""
    backend, stack = make_both(rank_info, setup)
    rows, said = batch(9), {}
    said["start"] = log_probs(backend.policy, rows)
    train_steps(stack, rank_info, [0, 1, 2])
    said["trained"] = log_probs(backend.policy, rows)
    if backend.ema is not None:
        backend.apply_eval_ema()
        said["average"] = log_probs(backend.policy, rows)
        backend.restore_from_eval()
    backend.export(folder)
    return said


def transformers_log_probs(model: Any, rows: DataProto) -> Tensor:
    """[B, T] the long way: all logits of a transformers or peft model, one row at a time and
    without padding."""
    mask = rows.tensor("response_mask")
    out = torch.zeros(mask.shape)
    for row in range(len(rows)):
        used = rows.tensor("attention_mask")[row].bool()
        ids = rows.tensor("input_ids")[row][used]
        num_reply = int(mask[row].sum())
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, :-1].float()
        values = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        out[row, :num_reply] = values[-num_reply:]
    return out


@pytest.mark.parametrize("kind", MERGED)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_merged_export_is_the_policy_that_was_evaluated(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, kind: str, world_size: int
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = str(tmp_path / "model")
    said = ranks.run(world_size, exported, Setup(str(tiny_model_dir), **MERGED[kind]), folder)[0]
    averaged = "average" in said and kind != "average not evaluated"
    wanted, other = (
        said["average" if averaged else "trained"],
        said["trained" if averaged else "start"],
    )
    got = transformers_log_probs(AutoModelForCausalLM.from_pretrained(folder), batch(9))
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
    assert (got - other).abs().max() > 1e-4
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert json.loads((Path(folder) / "config.json").read_text())["tie_word_embeddings"] is True


def test_an_adapter_export_is_the_policy_over_its_base(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = str(tmp_path / "adapter")
    setup = Setup(str(tiny_model_dir), lora=ADAPTER, ema=EmaLoraConfig(decay=0.5))
    said = ranks.run(2, exported, setup, folder)[0]
    base = AutoModelForCausalLM.from_pretrained(str(tiny_model_dir))
    adapted = PeftModel.from_pretrained(base, folder)
    got = transformers_log_probs(adapted, batch(9))
    torch.testing.assert_close(got, said["average"], atol=1e-5, rtol=0)
    assert (got - said["start"]).abs().max() > 1e-4
    assert list(adapted.peft_config) == ["default"]
    assert not (Path(folder) / "model.safetensors").exists()
    # transformers finds the base by the name in the folder.
    whole = transformers_log_probs(AutoModelForCausalLM.from_pretrained(folder), batch(9))
    torch.testing.assert_close(whole, said["average"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("lora", [LORA, ADAPTER], ids=["merged", "adapter"])
def test_a_pipeline_generates_from_an_export(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, lora: LoraConfig
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

    folder = str(tmp_path / "model")
    ranks.run(1, exported, Setup(str(tiny_model_dir), lora=lora), folder)
    generate = pipeline("text-generation", model=folder)
    (said,) = generate("12+3=", max_new_tokens=4, do_sample=False)
    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(folder),
    )
    ids = tokenizer("12+3=", return_tensors="pt").input_ids
    expected = []
    for _ in range(4):
        ids = torch.cat([ids, model(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
        expected.append(int(ids[0, -1]))
        if expected[-1] == tokenizer.eos_token_id:
            break
    assert said["generated_text"] == "12+3=" + tokenizer.decode(expected, skip_special_tokens=True)


def test_the_policy_class_reads_an_export_back(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    said = ranks.run(1, exported, Setup(str(tiny_model_dir)), str(tmp_path / "model"))[0]
    policy = CausalLMPolicy(AutoModelForCausalLM.from_pretrained(str(tmp_path / "model")))
    torch.testing.assert_close(log_probs(policy, batch(9)), said["trained"], atol=1e-6, rtol=0)
