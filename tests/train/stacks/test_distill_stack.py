"""A stack that reads a teacher: the same gradient for every cut into passes and ranks, and that of
the divergence itself."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rl_core.algorithms import algorithms
from rl_core.algorithms.distillation import Divergence, divergence
from rl_core.algorithms.metrics import Metric, merge_all, to_floats
from rl_core.models.bundle import ModelBundle
from rl_core.models.decoding.distributions import ComparedDistribution, KeptDistribution
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.stacks.distill_stack import DistillStack
from rl_core.train.teacher import FrozenTeacher
from schemas.recipe import FSDPConfig, ModelConfig
from tests.train.jobs import Setup, batch, make_backend, shard_of
from tests.train.ranks import Ranks

JSD = {"name": "distillation", "divergence": "jsd", "beta": 0.3, "vocabulary": "full"}


@pytest.fixture(scope="module")
def teacher_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "model"
    shutil.copytree(tiny_model_dir, folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(folder)
    return folder


def distilled(
    rank_info: RankInfo, setup: Setup, teacher_dir: str
) -> tuple[dict[str, Metric], float, int]:
    """Train one step; this rank's metrics, the gradient's norm and the bytes that the teacher gave
    back while it was offloaded."""
    backend = make_backend(rank_info, setup)
    cls, config = algorithms.resolve(setup.algorithm | {"teacher": teacher_dir}, "algorithm")
    teacher = FrozenTeacher(
        ModelBundle,
        teacher_dir,
        ModelConfig(path=teacher_dir),
        FSDPConfig.model_validate({"param_dtype": "float32"}),
        name="it",
        rank_info=rank_info,
    )
    stack = DistillStack(
        backend, cls(config), teachers=[teacher], **{"micro_batch_size": 2, **setup.stack}
    )
    freed = 0
    rows = shard_of(rank_info, batch(0))
    if stack.algorithm.compares_distributions:
        assert rows.batch is not None
        rows.batch["advantages"] = torch.zeros_like(rows.tensor("advantages"))
    else:
        found = stack.measure(rows)
        assert found is not None
        freed = teacher.offload()
        teacher.onload()
        rows = rows.union(found)
    result = stack.train(rows)
    return dict(result.metrics), result.grad_norm, freed


def test_the_gradient_is_that_of_the_divergence_for_every_cut(
    ranks: Ranks, tiny_model_dir: Path, teacher_dir: Path
) -> None:
    rows = batch(0)
    keep_BT = rows.tensor("response_mask").bool()

    def said(model: Any) -> Tensor:
        logits = model(
            rows.tensor("input_ids"),
            rows.tensor("attention_mask"),
            position_ids=rows.tensor("position_ids"),
        ).logits
        return logits[:, -keep_BT.shape[1] - 1 : -1][keep_BT].log_softmax(-1)

    student = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    with torch.no_grad():
        teacher_NV = said(AutoModelForCausalLM.from_pretrained(teacher_dir))
    loss = divergence(said(student), teacher_NV, Divergence.JSD, 0.3).mean()
    loss.backward()
    grads = [one.grad for one in student.parameters() if one.grad is not None]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    for world_size, rows_of_a_pass in ((1, 2), (1, 8), (2, 2)):
        setup = Setup(
            str(tiny_model_dir), algorithm=JSD, stack={"micro_batch_size": rows_of_a_pass}
        )
        found = ranks.run(world_size, distilled, setup, str(teacher_dir))
        metrics = to_floats(merge_all([metrics for metrics, _, _ in found]))
        assert metrics["teacher_divergence"] == pytest.approx(float(loss.detach()), rel=1e-4)
        assert found[0][1] == pytest.approx(float(norm), rel=1e-3)


def test_a_teacher_is_offloaded_and_says_the_same_afterwards(
    ranks: Ranks, tiny_model_dir: Path, teacher_dir: Path
) -> None:
    setup = Setup(str(tiny_model_dir), algorithm={"name": "distillation"})
    metrics, norm, freed = ranks.run(1, distilled, setup, str(teacher_dir))[0]
    assert freed > 0 and norm > 0 and metrics["ratio_mean"].result() == pytest.approx(1.0)


@pytest.mark.parametrize("top_k", [None, 6, 40])
def test_a_reader_of_some_tokens_counts_all_others_as_one(top_k: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden_NH = torch.randn(600, 8, generator=generator)
    student_HV, teacher_HV = (torch.randn(8, 40, generator=generator) for _ in range(2))
    targets_N = torch.randint(0, 40, (600,), generator=generator)
    teacher = KeptDistribution(top_k, 40)
    said_N, entropy_N = teacher.read(
        lambda hidden: hidden @ teacher_HV, hidden_NH, targets_N, temperature=1.0
    )
    teacher_NV = (hidden_NH @ teacher_HV).log_softmax(-1)
    torch.testing.assert_close(said_N, teacher_NV.gather(1, targets_N[:, None])[:, 0])
    torch.testing.assert_close(entropy_N, -(teacher_NV.exp() * teacher_NV).sum(1))
    assert teacher.kept is not None
    student = ComparedDistribution(
        teacher.kept, partial(divergence, kind=Divergence.FORWARD_KL, beta=0.5)
    )
    weight_HV = student_HV.clone().requires_grad_()
    _, apart_N = student.read(
        lambda hidden: hidden @ weight_HV, hidden_NH, targets_N, temperature=1.0
    )
    apart_N.sum().backward()
    assert weight_HV.grad is not None and weight_HV.grad.abs().sum() > 0
    student_NV = (hidden_NH @ student_HV).log_softmax(-1)
    if top_k == 6:
        order_NV = teacher_NV.argsort(1, descending=True)
        student_NV, teacher_NV = (one.gather(1, order_NV) for one in (student_NV, teacher_NV))
        student_NV, teacher_NV = (
            torch.cat([one[:, :6], one[:, 6:].logsumexp(1, keepdim=True)], 1)
            for one in (student_NV, teacher_NV)
        )
    wanted_N = (teacher_NV.exp() * (teacher_NV - student_NV)).sum(1)
    torch.testing.assert_close(apart_N.detach(), wanted_N, atol=1e-5, rtol=1e-4)
