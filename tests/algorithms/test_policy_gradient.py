"""What surrounds the policy loss: KL, entropy, correction, critic, and how a recipe's block is
read."""

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rl_core.algorithms import Denominators, KlKind, algorithms, merge_all, to_floats
from rl_core.algorithms.correction import (
    CorrectionConfig,
    CorrectionLevel,
    CorrectionMode,
    correction_weights,
)
from rl_core.algorithms.critic import CriticConfig, value_loss
from rl_core.errors import RecipeError
from tests.algorithms import reference
from tests.algorithms.batches import B, T, batch, build, gradient_by_differences, rows_of
from tests.algorithms.denominators import denominators_of


def loss_of(algorithm: Any, data: dict[str, Tensor], **changes: Any):
    return algorithm.loss(**{**data, **changes}, denominators=denominators_of(data["mask_BT"], 16))


@pytest.mark.parametrize("kind", [KlKind.K1, KlKind.ABS, KlKind.K2, KlKind.K3, KlKind.EXACT])
def test_kl_and_entropy_join_the_loss(kind: KlKind):
    data = batch()
    algorithm = build(kl={"coef": 0.3, "kind": kind}, entropy_coef=0.05, loss={"dual_clip": 1.5})
    loss, metrics = loss_of(algorithm, data)

    def one(a: reference.Action) -> float:
        return a["ref_kl"] if kind is KlKind.EXACT else reference.kl(kind, a["log_prob"] - a["ref"])

    rows = rows_of(data)
    surrogate = reference.ppo_clip(rows, dual=1.5)
    losses = [
        [
            policy + 0.3 * one(a) - 0.05 * a["entropy"]
            for policy, a in zip(row_losses, row, strict=True)
        ]
        for row_losses, row in zip(surrogate, rows, strict=True)
    ]
    assert loss.item() == pytest.approx(reference.aggregate(losses, "token-mean", 16), rel=1e-12)
    assert metrics["policy_loss"].result() == pytest.approx(
        reference.aggregate(surrogate, "token-mean", 16), rel=1e-12
    )
    assert metrics["kl_coef"].result() == 0.3


@pytest.mark.parametrize(
    ("block", "vanishes"),
    [
        ({}, True),
        ({"correction": {"upper": 2.0}}, True),
        ({"kl": {"coef": 0.1}}, False),
        ({"kl": {"coef": 0.1, "place": "reward"}}, True),
        ({"entropy_coef": 0.01}, False),
        ({"loss": {"name": "dro"}}, False),
        ({"loss": {"name": "clip_cov"}}, False),
        ({"loss": {"name": "kl_cov"}}, False),
    ],
    ids=str,
)
def test_rows_without_advantage_change_nothing_unless_another_term_reads_them(
    block: dict[str, Any], vanishes: bool
):
    algorithm, data = build(**block), batch()
    assert algorithm.vanishes_without_advantage == vanishes
    if not vanishes:
        return
    data["advantages_BT"][:4] = 0
    denominators, found = denominators_of(data["mask_BT"]), []
    for rows in (slice(None), slice(4, None)):
        part = {name: values[rows] for name, values in data.items()}
        part["log_probs_BT"] = part["log_probs_BT"].clone().requires_grad_()
        loss, _ = algorithm.loss(**part, denominators=denominators)
        loss.backward()
        found.append((loss.item(), part["log_probs_BT"].grad))
    (whole, whole_grad_BT), (rest, rest_grad_BT) = found
    assert rest == pytest.approx(whole, rel=1e-12) and not whole_grad_BT[:4].any()
    torch.testing.assert_close(rest_grad_BT, whole_grad_BT[4:], rtol=1e-12, atol=0)


CORRECTIONS = [
    (level, mode, reject)
    for level in CorrectionLevel
    for mode in CorrectionMode
    for reject in (None, ("k1", "token", 0.2), ("k2", "sequence", 0.4), ("k3", "geometric", 0.04))
]


@pytest.mark.parametrize(("level", "mode", "reject"), CORRECTIONS)
def test_correction_equals_plain_loops(
    level: str, mode: str, reject: tuple[str, str, float] | None
):
    data = batch(seed=2)
    block: dict[str, Any] = {"level": level, "mode": mode, "upper": 1.3}
    if mode == "mask":
        block["lower"] = 0.8
    if reject is not None:
        block["reject"] = dict(zip(("kind", "level", "upper"), reject, strict=True))
    weights_BT, dropped_BT = correction_weights(
        data["old_log_probs_BT"],
        data["rollout_log_probs_BT"],
        data["mask_BT"],
        CorrectionConfig(**block),
    )
    expected = reference.correction(rows_of(data), level, mode, 0.8, 1.3, reject)
    flat = torch.tensor([weight for row in expected for weight in row], dtype=torch.float64)
    kept_BT = data["mask_BT"] != 0
    torch.testing.assert_close(weights_BT[kept_BT], flat)
    assert (weights_BT[~kept_BT] == 0).all() and torch.equal(dropped_BT[kept_BT], flat == 0)
    assert not dropped_BT[~kept_BT].any()

    loss, metrics = loss_of(build(correction=block), data)
    surrogate = reference.ppo_clip(rows_of(data))
    weighed = [
        [w * v for w, v in zip(*pair, strict=True)]
        for pair in zip(expected, surrogate, strict=True)
    ]
    assert loss.item() == pytest.approx(reference.aggregate(weighed, "token-mean", 16), rel=1e-10)
    assert metrics["correction_dropped"].result() == pytest.approx(
        (flat == 0).double().mean().item()
    )


def test_correction_by_hand():
    # Differences log 4, log 1/4, 0: weights 4, 1/4, 1.
    old_BT = torch.tensor([[4.0, 0.25, 1.0]]).log()
    zeros_BT, mask_BT = torch.zeros(1, 3), torch.ones(1, 3)

    def weights(**block: Any) -> list[float]:
        return correction_weights(old_BT, zeros_BT, mask_BT, CorrectionConfig(**block))[0][
            0
        ].tolist()

    assert weights(upper=2.0) == pytest.approx([2.0, 0.25, 1.0])
    assert weights(mode="mask", upper=2.0, lower=0.5) == pytest.approx([0.0, 0.0, 1.0])
    assert weights(level="sequence") == pytest.approx([1.0, 1.0, 1.0])
    # k3 = e^D - D - 1: 1.61, 0.64, 0; the middle stays.
    assert weights(
        upper=9.0, reject={"kind": "k3", "level": "token", "upper": 1.0}
    ) == pytest.approx([0.0, 0.25, 1.0])
    # A D of log e^20 adds 10 to its row, not e^20: the mean over three actions is 10/3, and 4 lies
    # above it.
    far_BT = torch.tensor([[20.0, 0.0, 0.0]])
    for upper, kept in ((3.0, 0.0), (4.0, 1.0)):
        block = CorrectionConfig.model_validate({"reject": {"upper": upper}})
        assert correction_weights(far_BT, zeros_BT, mask_BT, block)[0][0, 1].item() == kept
    # k1 = -D: -1.39, 1.39, 0.
    assert weights(
        upper=9.0, reject={"kind": "k1", "level": "token", "lower": -1.0, "upper": 1.0}
    ) == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("reject", "said"),
    [
        ({"upper": 10.0}, "rejects nothing, since k3 is 10 at most"),
        ({"level": "token", "upper": 50.0}, "rejects nothing, since k3 is 10 at most"),
        ({"kind": "k1", "lower": 1.0, "upper": 0.5}, "lower 1.0 lies above"),
    ],
)
def test_a_rejection_that_cannot_be_meant_is_refused(reject: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        CorrectionConfig.model_validate({"reject": reject})
    assert CorrectionConfig.model_validate({"reject": {"level": "sequence", "upper": 50.0}}).reject


def test_one_token_far_from_the_reference_does_not_own_the_loss_or_the_reward():
    # Of two tokens one is e^20 times likelier to the reference: its KL is 10, not e^20 - 21.
    log_probs_BT, ref_BT, ones_BT = (
        torch.tensor([[-21.0, -1.0]]),
        torch.full((1, 2), -1.0),
        torch.ones(1, 2),
    )
    in_loss = build(kl={"coef": 1.0})
    loss, metrics = in_loss.loss(
        log_probs_BT, log_probs_BT, torch.zeros(1, 2), ones_BT, ref_BT, None, Denominators(2, 1, 2)
    )
    assert (loss.item(), metrics["kl_ref"].result()) == (5.0, 5.0)
    in_reward = build("reinforce_plus_plus", kl={"coef": 1.0, "place": "reward", "kind": "k3"})
    _, metrics = in_reward.advantages(
        torch.ones(1),
        torch.zeros(1, dtype=torch.long),
        ones_BT,
        log_probs_BT=log_probs_BT,
        ref_log_probs_BT=ref_BT,
    )
    assert metrics["kl_reward"].result() == 5.0


def test_metrics_by_hand():
    ratios = torch.tensor([[1.5, 0.5, 1.5, 9.0]])
    _, metrics = build().loss(
        ratios.log(), torch.zeros(1, 4), torch.tensor([[1.0, 1.0, -1.0, 1.0]]), torch.tensor([[1, 1, 1, 0]]),  # noqa: E501
        None, None, Denominators(6, 2, 4),
    )  # fmt: skip
    numbers = to_floats(metrics)
    # Only the first action is clipped; the step has six actions, so half of this share's mean of
    # (-1.2 - 0.5 + 1.5).
    assert numbers["policy_loss"] == pytest.approx(-0.2 / 6)
    assert numbers["ratio_mean"] == pytest.approx(3.5 / 3) and numbers[
        "ratio_max"
    ] == pytest.approx(1.5)
    assert numbers["clip_fraction"] == pytest.approx(1 / 3)
    assert numbers["approx_kl"] == pytest.approx(
        (2 * (0.5 - math.log(1.5)) + (-0.5 - math.log(0.5))) / 3, rel=1e-5
    )
    assert set(numbers) == {
        "loss",
        "policy_loss",
        "ratio_mean",
        "ratio_max",
        "clip_fraction",
        "approx_kl",
    }


def test_kl_in_the_reward_leaves_the_loss_alone():
    algorithm = build("reinforce_plus_plus", kl={"coef": 0.5}, advantage={"eps": 0.0})
    assert algorithm.kl_in_reward and algorithm.needs_reference
    mask_BT = torch.tensor([[1, 1], [1, 0]])
    log_probs_BT, ref_BT = (
        torch.tensor([[-1.0, -1.0], [-1.0, math.nan]]),
        torch.tensor([[-2.0, -1.0], [-3.0, math.inf]]),
    )
    advantages_BT, metrics = algorithm.advantages(
        torch.tensor([3.0, 1.0]),
        torch.tensor([0, 0]),
        mask_BT,
        log_probs_BT=log_probs_BT,
        ref_log_probs_BT=ref_BT,
    )
    # k1 is 1, 0 and 2: rewards -0.5, 3 and 1 - 1, returns 2.5, 3 and 0: mean 11/6, variance over n
    # - 1 31/12.
    expected = [(value - 11 / 6) / math.sqrt(31 / 12) for value in (2.5, 3.0, 0.0)]
    assert advantages_BT[mask_BT != 0].tolist() == pytest.approx(expected)
    assert metrics["kl_reward"].result() == pytest.approx(1.0)
    data = batch()
    assert loss_of(algorithm, data)[0].item() == loss_of(build(), data)[0].item()
    with pytest.raises(ValueError, match=r"kl\.place is reward"):
        algorithm.advantages(torch.tensor([3.0, 1.0]), torch.tensor([0, 0]), mask_BT)


def test_adaptive_kl_holds_its_target_and_comes_back_from_a_checkpoint():
    block = {"coef": 0.1, "adaptive": {"target": 0.02, "horizon": 100}}
    algorithm = build(kl=block)
    assert algorithm.state_dict() == {"kl_coef": 0.1}
    algorithm.observe({"kl_ref": 0.022}, num_rows=10)
    # 10 % above the target, ten of a hundred rows: 0.1 (1 + 0.1 * 0.1).
    assert algorithm.state_dict()["kl_coef"] == pytest.approx(0.101)
    algorithm.observe({"kl_ref": 9.0}, num_rows=10)
    assert algorithm.state_dict()["kl_coef"] == pytest.approx(0.101 * 1.02)
    restored = build(kl=block)
    restored.load_state_dict(algorithm.state_dict())
    data = batch()
    assert (
        loss_of(restored, data)[0].item()
        == loss_of(algorithm, data)[0].item()
        != loss_of(build(kl=block), data)[0]
    )
    algorithm.observe({"kl_ref": 0.0}, num_rows=10)
    assert algorithm.state_dict()["kl_coef"] == pytest.approx(0.101 * 1.02 * 0.98)
    with pytest.raises(ValueError, match="kl_ref"):
        algorithm.observe({}, num_rows=10)
    assert build(kl={"coef": 0.1}).state_dict() == {} == build().state_dict()


def plain_value_loss(rows: reference.Rows, clip: float | None) -> float:
    columns = []
    for row in rows:
        column = []
        for a in row:
            value, old, target = a["log_prob"], a["old"], a["ref"]
            held = value if clip is None else old + reference.clip(value - old, -clip, clip)
            column.append(0.25 * max((value - target) ** 2, (held - target) ** 2))
        columns.append(column)
    return reference.aggregate(columns, "token-mean", 16)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_value_loss_equals_loops_and_finite_differences_and_splits(clip: float | None):
    data = batch(seed=4)
    config = CriticConfig(value_clip=clip)
    values_BT = data["log_probs_BT"].clone().requires_grad_()
    denominators = denominators_of(data["mask_BT"], 16)
    poison_BT = data["mask_BT"] == 0
    old_BT, returns_BT = (
        data[name].masked_fill(poison_BT, math.nan)
        for name in ("old_log_probs_BT", "ref_log_probs_BT")
    )
    parts, total = [], 0.0
    for rows in torch.arange(B).tensor_split(3):
        loss, metrics = value_loss(
            values_BT[rows],
            old_BT[rows],
            returns_BT[rows],
            data["mask_BT"][rows],
            denominators,
            config,
        )
        loss.backward()
        total += loss.item()
        parts.append(metrics)
    assert total == pytest.approx(plain_value_loss(rows_of(data), clip), rel=1e-12)
    assert to_floats(merge_all(parts))["value_loss"] == pytest.approx(total)

    torch.testing.assert_close(
        values_BT.grad,
        gradient_by_differences(lambda rows: plain_value_loss(rows, clip), data),
        rtol=1e-6,
        atol=1e-9,
    )


def test_value_loss_by_hand():
    # Value 2, old 0, clip 1/2, return 1: max(1, 1/4) = 1; value 0.2 is not clipped: 0.64. Half of
    # it, times 1/2.
    loss, metrics = value_loss(
        torch.tensor([[2.0, 0.2]]), torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2), Denominators(2, 1, 2),  # noqa: E501
        CriticConfig(),
    )  # fmt: skip
    assert loss.item() == pytest.approx(0.25 * (1 + 0.64) / 2)
    assert metrics["value_clip_fraction"].result() == 0.0 and metrics[
        "value_mean"
    ].result() == pytest.approx(1.1)


def test_ppo_trains_its_critic_on_returns_before_whitening():
    algorithm = build("ppo", advantage={"lam": 0.5})
    assert algorithm.needs_critic and algorithm.critic == CriticConfig()  # pyright: ignore[reportAttributeAccessIssue]
    mask_BT = torch.tensor([[1, 1, 0]])
    given = (torch.tensor([1.0]), torch.tensor([0]), mask_BT)
    values_BT = torch.tensor([[0.5, 0.5, math.nan]])
    # delta_1 = 1/2, A_1 = 1/2; delta_0 = 0, A_0 = 1/4.
    assert algorithm.returns(*given, values_BT=values_BT).tolist() == [[0.75, 1.0, 0.0]]
    with pytest.raises(ValueError, match="no critic"):
        build().returns(*given)


def test_missing_inputs_wrong_shapes_and_unknown_inputs_are_named():
    data = batch()
    for block, missing in (
        ({"kl": {"coef": 0.1}}, "ref_log_probs_BT"),
        ({"kl": {"coef": 0.1, "kind": "exact"}}, "ref_kl_BT"),
        ({"entropy_coef": 0.1}, "entropy_BT"),
        ({"correction": {}}, "rollout_log_probs_BT"),
        ({"loss": {"name": "flow_dppo"}}, "old_kl_BT"),
    ):
        with pytest.raises(ValueError, match=f"{missing} is required"):
            loss_of(build(**block), data, **{missing: None})
    for name in ("advantages_BT", "rollout_log_probs_BT"):
        with pytest.raises(ValueError, match=f"{name} has shape"):
            loss_of(build(), data, **{name: torch.zeros(B)})
    with pytest.raises(TypeError, match="rollout_log_prob"):
        loss_of(build(), data, rollout_log_prob=torch.zeros(B, T))


NEEDS = (
    "reference",
    "ref_kl",
    "old_kl",
    "entropy",
    "rollout_log_probs",
    "critic",
    "greedy_baseline",
)


def test_the_recipe_block_says_what_is_needed():
    def needs(name: str, **block: Any) -> set[str]:
        algorithm = build(name, **block)
        return {need for need in NEEDS if getattr(algorithm, f"needs_{need}")}

    assert (
        needs("grpo") == set()
        and needs("ppo") == {"critic"}
        and needs("remax") == {"greedy_baseline"}
    )
    assert needs("grpo", kl={"coef": 0.01}, entropy_coef=0.1, correction={}) == {
        "reference",
        "entropy",
        "rollout_log_probs",
    }
    assert needs("flow_grpo") == {"reference", "ref_kl"} and needs("flow_dppo") == {"old_kl"}
    assert build("dapo").dynamic_sampling and not build("grpo").dynamic_sampling
    assert build("grpo", advantage={"name": "optimal_token_baseline"}).needs_sum_squared_probs


def config_of(**block: Any) -> Any:
    return algorithms.resolve(block, "algorithm")[1]


def test_a_recipe_states_only_what_differs_from_its_preset():
    assert config_of(name="dapo", loss={"clip_high": 0.3}).loss_block() == {
        "name": "ppo_clip",
        "clip_low": 0.2,
        "clip_high": 0.3,
        "aggregation": "token-mean",
    }
    assert config_of(name="dapo", clip_high=0.3).loss_block()["clip_high"] == 0.3
    # Another class starts from its own defaults.
    assert config_of(name="dapo", loss={"name": "gspo"}).loss_block() == {"name": "gspo"}
    assert config_of(name="dr_grpo", advantage={"eps": 0.1}).advantage == {
        "name": "grpo",
        "norm_by_std": False,
        "eps": 0.1,
    }
    assert config_of(name="dapo", overlong={"buffer": 100}).overlong.filter


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"clip_hi": 0.28}, r"algorithm\.clip_hi: unknown key \(did you mean 'clip_high'\?\)"),
        (
            {"loss": {"clip_hi": 1}},
            r"algorithm\.loss\.clip_hi: unknown key \(did you mean 'clip_high'\?\)",
        ),
        ({"loss": {"name": "gsppo"}}, r"unknown policy loss 'gsppo' \(did you mean 'gspo'\?\)"),
        (
            {"loss": {"name": "reinforce"}, "clip_high": 0.3},
            r"algorithm\.loss\.clip_high: unknown key",
        ),
        ({"loss": {"dual_clip": 1}}, r"algorithm\.loss\.dual_clip: .*greater than 1"),
        ({"clip_high": 0.3, "loss": {"clip_high": 0.2}}, "clip_high is given twice"),
        (
            {"advantage": {"name": "grpo", "kappa0": 1}},
            r"algorithm\.advantage\.kappa0: unknown key",
        ),
        ({"advantage": {"name": "rlo"}}, r"unknown advantage 'rlo' \(did you mean 'rloo'\?\)"),
        ({"kl": {"kind": "k4"}}, r"algorithm\.kl\.kind"),
        ({"kl": {"coeff": 1}}, r"algorithm\.kl\.coeff: unknown key \(did you mean 'coef'\?\)"),
        ({"kl": {"adaptive": {"target": 1}}}, "kl.adaptive needs a kl.coef"),
        ({"kl": {"coef": 1, "kind": "exact", "place": "reward"}}, "set kl.place: loss"),
        ({"correction": {"lower": 0.5}}, "correction.lower acts with"),
        ({"correction": {"mode": "mask", "lower": 3}}, "lies above correction.upper"),
        ({"correction": {"reject": {"kind": "abs"}}}, r"algorithm\.correction\.reject\.kind"),
        ({"critic": {}}, "has no critic"),
        ({"overlong": {"bufer": 3}}, "did you mean 'buffer'"),
    ],
)
def test_a_mistake_in_the_block_is_named(block: dict[str, Any], message: str):
    with pytest.raises(RecipeError, match=message):
        config_of(name="grpo", **block)
