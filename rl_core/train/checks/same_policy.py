"""Check that a policy wrapped for training still gives the results of the loaded model.

Sharding of weights (tensor parallelism), sequences (sequence parallelism) and experts (expert
parallelism) depends on how a family is written, like every other way in
`rl_core.models.checks.probe`. The same rows go through the wrapped policy once, before training.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from rl_core.errors import ModelError
from rl_core.models.checks.paths import Path
from rl_core.models.checks.probe import ALIKE, as_judged, row_by_row, same_attention
from rl_core.models.modes import learning_mode
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.sharding import fsdp_wrap
from schemas.sections.policy import FSDPConfig, ModelConfig
from schemas.sections.section import DType

ALIKE_ROUNDED = 0.1
"""Tolerance in bfloat16: mean difference of log-probabilities relative to their spread, well above
the effect of rounding."""


def settle_wrapped(backend: Any) -> None:
    """Set up an FSDPBackend's policy once after the wrap. Collective. Raises: ModelError.

    It is put into training mode, made exact if the recipe asks for that, and compared with the
    model.
    """
    config: ModelConfig | None = getattr(backend.bundle, "config", None)
    learning_mode(backend.policy, own_dropout=config is not None and config.dropout)
    if config is not None and config.exact:
        for model in backend.models:
            model.make_exact()
        with backend.gathered() as policy:
            check_exact(policy)
    with ExitStack() as stack:
        if getattr(backend.bundle, "initial_adapters", None) is not None and backend.lora_cfg:
            # Adapters that were trained before have an effect; the model is what is below them.
            stack.enter_context(backend.reference_policy())
        shards = backend.meshes.num_shards
        stack.enter_context(fsdp_wrap.block_by_block(backend.policy, backend.fsdp_cfg, shards))
        check_same_policy(backend.policy, backend.fsdp_cfg, backend.rank_info)


def check_same_policy(policy: Any, config: FSDPConfig, rank_info: RankInfo) -> None:
    """Compare the wrapped policy with the loaded model. Collective: all ranks compute the same
    rows.

    Raises: ModelError when the policy, whose adapters are off or new, gives other results.
    """
    truth = None if getattr(policy, "paths", None) is None else policy.paths.truth
    if truth is None:
        return
    cuts = {
        "placement.tp_size": rank_info.tp_size,
        "placement.sp_size": rank_info.sp_size,
        "placement.ep_size": rank_info.ep_size,
    }
    cut = {key: size for key, size in cuts.items() if size > 1}
    where = (
        " and ".join(f"{key} {size}" for key, size in cut.items())
        or f"fsdp.param_dtype {config.param_dtype}"
    )
    advice = " and ".join(f"{key} to 1" for key in cut) or "fsdp.param_dtype to float32"
    name = type(policy.language_model).__name__
    try:
        # What attends across ranks is chosen at the first pass, for the way of computing that the
        # run has by then.
        with torch.no_grad(), as_judged(policy), same_attention(policy.language_model):
            if policy.paths.why_not(Path.PADDED):
                log_probs_BT = row_by_row(policy, truth, rank_info.device)
            else:
                log_probs_BT = policy(**truth.batch(rank_info.device))[0]
    except ModelError:
        raise
    except (
        Exception
    ) as error:  # a foreign forward over parts of weights or of rows may raise anything
        if not cut:
            raise
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ModelError(
            f"{where}: {name} cannot be computed so ({type(error).__name__}: {reason}); set "
            f"{advice}"
        ) from error
    differences = truth.differences(log_probs_BT)
    mean, largest = sum(differences) / len(differences), max(differences)
    is_rounded = {config.param_dtype, config.master_dtype} != {DType.FLOAT32}
    if mean <= ALIKE_ROUNDED * truth.spread if is_rounded else largest <= ALIKE * truth.spread:
        return
    raise ModelError(
        f"{where}: {name} then differs from its own forward by {mean:.2g} in the mean and "
        f"{largest:.2g} at most in a log-probability; set {advice}"
    )


def check_exact(policy: Any) -> None:
    """Check that decoding and a forward pass give a token the same bits.

    Args: policy: gathered, after `make_exact`. Raises: ModelError when they do not.
    """
    from rl_core.models.decoding.decode import forced_log_probs

    truth = None if policy.paths is None else policy.paths.truth
    if truth is None:
        return
    batch = truth.batch(policy.language_model.device)
    forward_BT = policy(**batch)[0]
    with policy.ready_to_decode():
        decoded = forced_log_probs(policy, list(zip(truth.prompts, truth.responses, strict=True)))
    differences = []
    for row_T, row in zip(forward_BT.tolist(), decoded, strict=True):
        for ours, theirs in zip(row_T, row, strict=False):
            differences.append(abs(ours - theirs))
    if any(differences):
        raise ModelError(
            f"model.exact: true: {type(policy.language_model).__name__} gives "
            f"{sum(map(bool, differences))} of {len(differences)} tokens another log-probability "
            f"while decoding than in a forward pass (by up to {max(differences):.2g}); set "
            "model.exact to false"
        )
