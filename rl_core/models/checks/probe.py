"""Probe of each way of computing log-probabilities against the model's own results, when it is
loaded.

The policy is the model: transformers' own forward, one row at a time, without padding or cache.
Training and sampling compute it in faster ways: padded batches, rows packed end to end, prefix
sharing, decoding with a KV cache, modules of this project in place of the model's. Each depends on
how a family is written, and an error in one would not be noticed, since rollout and trainer would
share it. So a few rows go through all of them. A way that differs is not used, and `Paths` says
why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rl_core.errors import ModelError
from rl_core.models.backbone import attention_of
from rl_core.models.checks.paths import Path, Paths, Truth
from rl_core.models.checks.row_length import longest_row_of
from rl_core.models.checks.short_windows import short_windows
from rl_core.models.decoding.decode import forced_log_probs
from rl_core.models.loading.unread import accelerated, device_of, unread_of
from rl_core.models.policy import TokenPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ALIKE = 1e-3
"""Tolerance of a log-probability, relative to the spread of log-probabilities."""
PROMPTS, RESPONSES = (3, 14), ((12, 2), (5, 9))
"""Lengths of the probe rows: two prompts of two siblings."""


def settle(policy: TokenPolicy, known: Paths | None, asked_attention: str = "sdpa") -> None:
    """Put fast modules into a policy that was just loaded, and probe how it may be computed, unless
    that is known.

    Raises: ModelError when the model's own forward fails or gives no numbers.
    """
    model = policy.language_model
    if known is not None:
        policy.compute_part_alone(known.why_not(Path.PART) is None)
        if known.why_not(Path.KERNELS) is None:
            accelerated(model)
        policy.paths = known
        return
    refused: dict[Path, str] = {}
    closed: dict[Path, str] = {}
    with torch.no_grad(), as_judged(policy):
        check_weights(model)
        truth = truth_of(policy)
        _check_causal(model, truth)
        if policy.compute_part_alone(True) and (
            why := _why_it_differs(truth, lambda: row_by_row(policy, truth))
        ):
            policy.compute_part_alone(False)
            refused[Path.PART] = why
            if why := _why_it_differs(truth, lambda: row_by_row(policy, truth)):
                raise ModelError(
                    f"{type(model).__name__} cannot be trained on text: log-probabilities from "
                    f"its last hidden states {why}"
                )
        replaced = accelerated(model)
        if replaced and (why := _why_it_differs(truth, lambda: _learning(policy, truth))):
            replaced.undo()
            refused[Path.KERNELS] = why
        for path, compute in (
            (Path.PADDED, lambda: policy(**truth.batch())[0]),
            (Path.PACKED, lambda: _packed(policy, truth)),
            (Path.SHARED, lambda: _shared(policy, truth)),
            (Path.CACHED, lambda: _decoded(policy, truth, in_one_batch=Path.PADDED not in refused)),
        ):
            try:
                why = _why_it_differs(truth, compute)
            except _Closed as reason:
                closed[path] = str(reason)
                continue
            if why is not None:
                refused[path] = why
        if Path.PADDED in refused and (
            why := _why_it_differs(truth, lambda: row_by_row(policy, truth))
        ):
            raise ModelError(
                f"{type(model).__name__} cannot be trained: log-probabilities of single rows, "
                f"from its last hidden states at positions counted from 0, {why}"
            )
    policy.paths = Paths(truth, refused, closed, attention_of(model), asked_attention)


def truth_of(policy: TokenPolicy) -> Truth:
    """Return the model's own results on a few rows. Raises: ModelError when it fails, or gives no
    numbers."""
    model = policy.language_model
    prompts, responses = _rows(model)
    log_probs, spreads = [], []
    for prompt, group in zip(prompts, responses, strict=True):
        for response in group:
            ids = torch.tensor([[*prompt, *response]], device=device_of(model))
            try:
                logits_LV = model(input_ids=ids, use_cache=False).logits[0].float()
            except Exception as error:  # a foreign forward may raise anything
                raise ModelError(
                    f"{type(model).__name__} cannot be trained on text: its own forward fails on "
                    f"plain rows of tokens ({type(error).__name__}: {_first_line(error)})"
                ) from error
            all_TV = logits_LV[len(prompt) - 1 : -1].log_softmax(-1)
            if not bool(all_TV.isfinite().all()):
                raise ModelError(
                    f"{type(model).__name__}: the model's own log-probabilities are no numbers"
                )
            log_probs.append(tuple(all_TV.gather(-1, ids[0, len(prompt) :, None])[:, 0].tolist()))
            spreads.append(float(all_TV.std()))
    return Truth(prompts, responses, tuple(log_probs), sum(spreads) / len(spreads))


def check_weights(model: PreTrainedModel) -> None:
    """Check that all weights are finite numbers, including those that no probed row uses (an
    expert, a word).

    Raises: ModelError naming the first that is not.
    """
    name = type(model).__name__
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None and not quantizer.is_trainable:
        method = getattr(quantizer.quantization_config, "quant_method", "unknown")
        raise ModelError(
            f"{name}: quantised weights ({method}) cannot be trained; give the model it was made "
            "from"
        )
    weights = dict(model.named_parameters())
    narrow = []
    for key, one in weights.items():
        if not one.is_floating_point() or one.element_size() < 2:
            narrow.append(key)
    if narrow:
        kind = str(weights[narrow[0]].dtype).removeprefix("torch.")
        raise ModelError(
            f"{name}: {narrow[0]} is stored as {kind}; quantised weights cannot be trained"
        )
    unread = unread_of(model)
    bad = []
    for key, one in weights.items():
        if not _is_finite(one if unread is None else unread.value(one)):
            bad.append(key)
    # Buffers may hold infinity on purpose, as masks do.
    kept = model.state_dict()
    bad += [
        key
        for key, one in model.named_buffers()
        if key in kept and one.is_floating_point() and bool(one.isnan().any())
    ]
    if bad:
        raise ModelError(
            f"{name}: {len(bad)} weights hold NaN or infinity, the first is {bad[0]}; give whole "
            "weights"
        )


def _is_finite(values: Tensor) -> bool:
    """Check in one pass without a copy: minimum and maximum are NaN if any number is."""
    return values.numel() == 0 or all(bool(end.isfinite()) for end in values.aminmax())


def _check_causal(model: PreTrainedModel, truth: Truth) -> None:
    """Check that later tokens do not change the result of a token. Raises: ModelError when they
    do."""
    ids = torch.tensor([[*truth.prompts[-1], *truth.responses[-1][-1]]], device=device_of(model))
    half = ids.shape[1] // 2
    whole_TV, part_TV = (
        model(input_ids=one, use_cache=False).logits[0] for one in (ids, ids[:, :half])
    )
    differences = whole_TV[:half].float().log_softmax(-1) - part_TV.float().log_softmax(-1)
    if float(differences.abs().max()) > ALIKE * truth.spread:
        raise ModelError(
            f"{type(model).__name__} is not causal: what follows a token changes its logits, so "
            "it cannot write token by token; encoders need is_decoder: true in their "
            "config.json, and training that fits it"
        )


class _Closed(Exception):
    """A way that this model does not support."""


def _rows(
    model: PreTrainedModel,
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[tuple[int, ...], ...], ...]]:
    """Return prompts and responses of words without a special meaning to the model."""
    config = model.config
    special = set()
    for one in (config, config.get_text_config()):
        for name, value in one.to_dict().items():
            if name.endswith(("_token_id", "_token_index", "_ids")):
                special |= set(value) if isinstance(value, list | tuple) else {value}
    longest = longest_row_of(model)
    most = sys.maxsize if longest is None else longest.num_tokens
    words = []
    for word in range(config.get_text_config().vocab_size):
        if word not in special:
            words.append(word)
    generator = torch.Generator().manual_seed(0)

    def draw(length: int) -> tuple[int, ...]:
        places = torch.randint(len(words), (length,), generator=generator).tolist()
        return tuple(words[place] for place in places)

    prompts = tuple(draw(min(length, max(1, most // 2))) for length in PROMPTS)
    rooms = [max(1, most - len(prompt)) for prompt in prompts]
    responses = []
    for room, group in zip(rooms, RESPONSES, strict=True):
        responses.append(tuple(draw(min(length, room)) for length in group))
    return prompts, tuple(responses)


def _why_it_differs(truth: Truth, compute: Callable[[], Tensor]) -> str | None:
    """Describe the difference of log-probabilities; None if there is none. Raises: _Closed."""
    try:
        log_probs_BT = compute()
    except _Closed:
        raise
    except (
        Exception
    ) as error:  # a foreign forward may raise anything, which only says that this is no way for it
        return f"cannot be computed ({type(error).__name__}: {_first_line(error)})"
    difference = truth.largest_difference(log_probs_BT)
    if difference <= ALIKE * truth.spread:
        return None
    return f"differ from the model's own forward by up to {difference:.2g} in a log-probability"


def row_by_row(policy: TokenPolicy, truth: Truth, device: torch.device | str = "cpu") -> Tensor:
    """Return the results of a policy's forward, [B, T], for each row alone, without padding."""
    batch = truth.batch(device)
    num_response = batch["response_mask_BT"].shape[1]
    log_probs_BT = torch.zeros(batch["response_mask_BT"].shape, device=device)
    for row, used_L in enumerate(batch["attention_mask_BL"].bool()):
        first, last = int(used_L.int().argmax()), int(used_L.nonzero()[-1]) + 1
        length = last - (len(used_L) - num_response)
        columns = {}
        for name, value in batch.items():
            if name.endswith("BL"):
                columns[name] = value[row : row + 1, first:last]
        acts_BT = batch["response_mask_BT"][row : row + 1, :length]
        log_probs_BT[row, :length] = policy(**columns, response_mask_BT=acts_BT)[0][0]
    return log_probs_BT


def _learning(policy: TokenPolicy, truth: Truth) -> Tensor:
    """Return the same in a training pass: this project's modules then compute differently, and
    autograd may refuse them."""
    with torch.enable_grad():
        return row_by_row(policy, truth).detach()


def _packed(policy: TokenPolicy, truth: Truth) -> Tensor:
    if why := policy.why_no_packing():
        raise _Closed(why)
    with same_attention(policy.language_model):
        policy.enable_packing()
        return policy(**truth.batch(), packed=True)[0]


def _shared(policy: TokenPolicy, truth: Truth) -> Tensor:
    if why := policy.why_no_prompt_sharing():
        raise _Closed(why)
    with same_attention(policy.language_model):
        policy.enable_prompt_sharing()
        return policy(**truth.batch(), share_prompts=True)[0]


def _decoded(policy: TokenPolicy, truth: Truth, *, in_one_batch: bool) -> Tensor:
    """Return the responses' log-probabilities token by token, with the prompts' KV cache."""
    groups = list(zip(truth.prompts, truth.responses, strict=True))
    parts = [groups] if in_one_batch else [[group] for group in groups]
    rows = [row for part in parts for row in forced_log_probs(policy, part)]
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


@contextmanager
def as_judged(policy: TokenPolicy) -> Iterator[None]:
    """Put the policy into evaluation mode, with short windows, during the block."""
    from rl_core.models.modes import evaluation_mode

    with evaluation_mode(policy), short_windows(policy.language_model):
        yield


@contextmanager
def same_attention(model: PreTrainedModel) -> Iterator[None]:
    """Restore the model's attention after the block."""
    before = attention_of(model)
    try:
        yield
    finally:
        if attention_of(model) != before:
            model.set_attn_implementation(before)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
