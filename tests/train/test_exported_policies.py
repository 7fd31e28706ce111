"""Whatever adapters touch, what is written and what is sent says what was trained; anything else is
refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.errors import ExportMismatch, WeightMismatch
from rl_core.models.adapters.merging import Adapted
from rl_core.models.checks.comparison import places_in
from rl_core.models.export.checksums import checksum
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.dedicated import Replica
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.weights.buckets import WeightVersion, kept_weights, sent_weights
from schemas.recipe import DType, ExportKind, LoraConfig
from schemas.sections.rollout import SyncMode
from tests.models.tiny_causal import CASES, Case, save
from tests.train.jobs import Setup, batch, log_probs, make_both, make_bundle, train_steps
from tests.train.ranks import Ranks
from tests.train.test_export import transformers_log_probs

# What peft's own merge would do wrong is what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`"),
    pytest.mark.filterwarnings("ignore:The following rank_pattern keys did not match"),
    pytest.mark.filterwarnings("ignore:The following alpha_pattern keys did not match"),
]
TIED_HEAD, EXPERTS = CASES["tied head"], CASES["fused experts"]
CLOSE = 1e-5


def trained(rank_info: RankInfo, setup: Setup) -> tuple[Any, Tensor, Tensor]:
    """A backend after two steps; what its policy said before and says now."""
    backend, stack = make_both(rank_info, setup)
    start = log_probs(backend.policy, batch(9))
    train_steps(stack, rank_info, [0, 1])
    return backend, start, log_probs(backend.policy, batch(9))


def exported(rank_info: RankInfo, setup: Setup, folder: str) -> tuple[Tensor, Tensor]:
    backend, start, end = trained(rank_info, setup)
    backend.export(folder)
    return start, end


def synced(
    rank_info: RankInfo, setup: Setup, *modes: SyncMode
) -> tuple[Tensor, dict[SyncMode, Tensor]]:
    """What the trained policy says, and models of engines that were sent its weights."""
    backend, _, end = trained(rank_info, setup)
    return end, {mode: said_by_an_engine(backend, setup, mode) for mode in modes}


def said_by_an_engine(backend: FSDPBackend, setup: Setup, mode: SyncMode) -> Tensor:
    rank_info = backend.rank_info
    replica = Replica(make_bundle(setup.model_dir), setup.lora, mode, DType.FLOAT32, rank_info)
    expected = {}
    for name, value in [
        *sent_weights(backend, mode, torch.float32, averaged=False),
        *kept_weights(backend, mode),
    ]:
        expected[name] = checksum(value.float())
    for name, value in sent_weights(backend, mode, torch.float32, averaged=False):
        replica.parameters[name].copy_(value)
    replica.finish(WeightVersion(3), expected, torch.float32)
    return log_probs(replica.policy, batch(9))


def setup_of(case: Case, tokenizer_dir: Path, folder: Path, **lora: Any) -> Setup:
    return Setup(str(save(case, tokenizer_dir, folder)), lora=case.lora(**lora))


@pytest.mark.parametrize("export", ExportKind)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.adapted])
def test_plain_transformers_reads_the_trained_policy_from_adapters(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, name: str, export: ExportKind
) -> None:
    from transformers import AutoModelForCausalLM

    case, folder = CASES[name], tmp_path / "out"
    setup = setup_of(case, tiny_model_dir, tmp_path / "base", export=export)
    start, end = ranks.run(1, exported, setup, str(folder))[0]
    assert (end - start).abs().max() > 100 * CLOSE, (
        "training changed nothing, so this shows nothing"
    )
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(transformers_log_probs(model, batch(9)), end, atol=CLOSE, rtol=0)
    if export is ExportKind.MERGED:
        tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", True)
        assert tied is (case.tied and not case.touches_tied)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.adapted])
def test_plain_transformers_reads_the_trained_policy(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, name: str
) -> None:
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "out"
    start, end = ranks.run(
        1, exported, setup_of(CASES[name], tiny_model_dir, tmp_path / "base"), str(folder)
    )[0]
    assert (end - start).abs().max() > 100 * CLOSE
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(transformers_log_probs(model, batch(9)), end, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.adapted])
def test_an_engine_is_sent_the_trained_policy(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, name: str
) -> None:
    setup = setup_of(CASES[name], tiny_model_dir, tmp_path / "base")
    said, engines_say = ranks.run(1, synced, setup, *SyncMode)[0]
    assert engines_say.keys() == set(SyncMode)
    for mode, engine_says in engines_say.items():
        torch.testing.assert_close(
            engine_says, said, atol=CLOSE, rtol=0, msg=lambda text, mode=mode: f"{mode}: {text}"
        )


@pytest.mark.parametrize("case", [TIED_HEAD, EXPERTS], ids=["tied head", "fused experts"])
def test_shards_are_exported_and_sent_whole(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, case: Case
) -> None:
    from transformers import AutoModelForCausalLM

    setup = setup_of(case, tiny_model_dir, tmp_path / "base")
    _, end = ranks.run(2, exported, setup, str(tmp_path / "out"))[0]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(transformers_log_probs(model, batch(9)), end, atol=CLOSE, rtol=0)
    said, engines_say = ranks.run(2, synced, setup, SyncMode.FULL)[1]
    torch.testing.assert_close(engines_say[SyncMode.FULL], said, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("case", [TIED_HEAD, CASES["whole, tied"]], ids=["merged", "whole"])
def test_a_bfloat16_export_is_rounded_once_and_compared_without_slack(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, case: Case
) -> None:
    from transformers import AutoModelForCausalLM

    base = save(case, tiny_model_dir, tmp_path / "base", torch.bfloat16)
    setup = Setup(str(base), lora=case.lora(), fsdp={"param_dtype": "bfloat16"})
    _, end = ranks.run(1, exported, setup, str(tmp_path / "out"))[0]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    got = transformers_log_probs(model.float(), batch(9))
    assert CLOSE < (got - end).abs().max() < 0.1, "rounding is seen, and nothing else"


def incomplete(rank_info: RankInfo, setup: Setup) -> str:
    """What an engine says to an update that leaves one of its tensors out."""
    backend, _ = make_both(rank_info, setup)
    replica = Replica(
        make_bundle(setup.model_dir), setup.lora, SyncMode.FULL, DType.FLOAT32, rank_info
    )
    sent = dict(sent_weights(backend, SyncMode.FULL, torch.float32, averaged=False))
    del sent["model.lm_head.weight"]
    with pytest.raises(WeightMismatch) as error:
        replica.finish(
            WeightVersion(0),
            {name: checksum(value.float()) for name, value in sent.items()},
            torch.float32,
        )
    assert replica.version is None
    return str(error.value)


def test_a_tensor_that_is_never_sent_is_noticed(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    setup = setup_of(TIED_HEAD, tiny_model_dir, tmp_path / "base")
    said = ranks.run(1, incomplete, setup)[0]
    assert (
        "were neither sent by the trainer nor compared with its own, first model.lm_head.weight"
        in said
    )


VISION_TARGETS = {
    "by default": None,
    "tied head": ["lm_head", "down_proj"],
    "connector": ["connector.modality_projection.proj"],
}


@pytest.mark.parametrize("targets", VISION_TARGETS)
def test_a_vision_language_model_is_exported_as_it_was_trained(
    ranks: Ranks, tiny_vlm_dir: Path, tmp_path: Path, targets: str
) -> None:
    from transformers import AutoModelForImageTextToText

    lora = LoraConfig(rank=4, alpha=8, target_modules=VISION_TARGETS[targets])
    start, end = ranks.run(1, exported, Setup(str(tiny_vlm_dir), lora=lora), str(tmp_path / "out"))[
        0
    ]
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "out").float()
    torch.testing.assert_close(transformers_log_probs(model, batch(9)), end, atol=1e-4, rtol=0)
    assert targets == "connector" or (end - start).abs().max() > 1e-3


def flipped_when_written(folder: Path) -> None:
    """One bit of one number of the saved model, of its last tensor but one."""
    from safetensors.torch import load_file, save_file

    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    name = sorted(tensors)[-2]
    tensors[name].view(torch.int32).view(-1)[3] ^= 1 << 12
    save_file(tensors, path, metadata={"format": "pt"})


def damaged_file(patch: pytest.MonkeyPatch) -> None:
    from transformers import PreTrainedModel

    write = PreTrainedModel.save_pretrained

    def save_and_flip(self: Any, folder: Any, **options: Any) -> None:
        write(self, folder, **options)
        flipped_when_written(Path(folder))

    patch.setattr(PreTrainedModel, "save_pretrained", save_and_flip)


def forgotten_delta(patch: pytest.MonkeyPatch) -> None:
    """The merge leaves the head's adapter out."""
    delta = Adapted.delta

    def without_head(self: Adapted, of: Any) -> Tensor:
        return delta(self, of) * ("lm_head" not in self.path)

    patch.setattr(Adapted, "delta", without_head)


def kept_tie(patch: pytest.MonkeyPatch) -> None:
    """The merge does not untie."""
    patch.setattr("rl_core.models.export.stored_weights.unties", lambda model, adapted: False)


DAMAGES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "file": (damaged_file, r"1 of \d+ tensors were not read back as they were to be written"),
    "merge": (
        forgotten_delta,
        r"does not say what the trained policy says: they differ by up to .* \(at token \d+ of the reply in row",  # noqa: E501
    ),
    "tie": (kept_tie, r"does not say what the trained policy says: they differ by up to"),
}


def refused(rank_info: RankInfo, setup: Setup, folder: str, damage: str) -> str:
    """What the export of a policy says to its damage."""
    backend, _, _ = trained(rank_info, setup)
    with pytest.MonkeyPatch.context() as patch:
        DAMAGES[damage][0](patch)
        with pytest.raises(ExportMismatch, match=DAMAGES[damage][1]) as error:
            backend.export(folder)
    return str(error.value)


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_export_that_is_another_policy_is_refused(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, damage: str
) -> None:
    setup = setup_of(TIED_HEAD, tiny_model_dir, tmp_path / "base")
    assert (
        "Nothing was registered" in ranks.run(1, refused, setup, str(tmp_path / "out"), damage)[0]
    )


def refused_live(rank_info: RankInfo, setup: Setup, folder: str) -> str:
    """A frozen weight of the live policy moves: what is taken from it is no longer what it computes
    with."""
    backend, _, _ = trained(rank_info, setup)
    backend.policy.language_model.model.norm.weight.data.mul_(1.01)
    with pytest.raises(ExportMismatch) as error:
        backend.export(folder)
    return str(error.value)


def test_a_live_policy_that_computes_with_other_weights_is_noticed(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    setup = setup_of(TIED_HEAD, tiny_model_dir, tmp_path / "base")
    said = ranks.run(1, refused_live, setup, str(tmp_path / "out"))[0]
    assert "are not what it computes with: they differ by up to" in said
    assert not (tmp_path / "out").exists()


def test_an_adapter_names_its_base_from_anywhere(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    setup = setup_of(TIED_HEAD, tiny_model_dir, tmp_path / "base", export=ExportKind.ADAPTER)
    monkeypatch.chdir(tmp_path)
    relative = replace(setup, model_dir="base")
    with Ranks() as here:
        _, end = here.run(1, exported, relative, str(tmp_path / "out"))[0]
    monkeypatch.chdir(tiny_model_dir)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(transformers_log_probs(model, batch(9)), end, atol=CLOSE, rtol=0)


def test_compared_rows_are_ordinary_tokens_of_several_lengths(tiny_model_dir: Path) -> None:
    bundle = make_bundle(str(tiny_model_dir))
    rows, again = bundle.compared_rows, bundle.compared_rows
    assert all(torch.equal(one.ids_L, other.ids_L) for one, other in zip(rows, again, strict=True))
    assert not set(torch.cat([row.ids_L for row in rows]).tolist()) & set(
        bundle.tokenizer.all_special_ids
    )
    assert len({len(row.ids_L) for row in rows}) > 1
    assert len(places_in(rows)) == len(bundle.said_by(bundle.policy.eval(), torch.device("cpu")))


def test_short_contexts_are_not_exceeded(tiny_model_dir: Path) -> None:
    bundle = make_bundle(str(tiny_model_dir))
    bundle.policy.language_model.config.max_position_embeddings = 6
    assert {len(row.ids_L) for row in bundle.compared_rows} == {6}
