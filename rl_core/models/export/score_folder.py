"""Export of a reward model as an ordinary folder of a sequence classifier with one label, for
transformers' `AutoModelForSequenceClassification`, verified by reading it back."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from rl_core.errors import ModelError
from rl_core.models.backbone import backbone_name, backbone_of, head_of
from rl_core.models.checks.comparison import Live, TokenRow, places_in
from rl_core.models.export.folder import TokenBundle, stored_dtype, trained_policy
from rl_core.models.export.stored_weights import formats, write_stored
from schemas.recipe import LoraConfig

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

HEAD = "score"
"""Name of the linear layer in transformers' classifiers of decoder-only models."""
WEIGHT = f"{HEAD}.weight"


class ScoreBundle(TokenBundle, Protocol):
    """A reward model, as `rl_core.models.heads.reward_model` holds it."""

    padding: int
    """Padding token, which no conversation ends with."""


def export_scores(
    bundle: ScoreBundle, trained: dict[str, Tensor], lora: LoraConfig | None, out: Path, live: Live
) -> None:
    """Write base weights, score head and `trained` to `out`, adapters merged, in the base model's
    own number format, with tokenizer and chat template.

    The folder is loaded again by transformers alone, whose own forward must give the scores of the
    policy. Args: as of `export_policy`. Raises: ExportMismatch when the written weights compute
    other scores; ModelError when the family has no classifier.
    """
    policy = trained_policy(bundle, trained, lora)

    def write() -> nn.Module:
        model = _classifier(policy.model, bundle)
        bundle.tokenizer.save_pretrained(out)
        model.save_pretrained(out)
        return model

    written = write_stored(
        policy,
        partial(bundle.said_by, policy, torch.device("cpu")),
        formats(policy.model, stored_dtype(bundle)),
        live,
        write,
        merge=True,
        places=places_in(bundle.compared_rows),
    )
    model = _class(policy.language_model.config).from_pretrained(out, dtype=torch.float32).eval()
    said = [_scores_of(model, row) for row in bundle.compared_rows]
    written.check(torch.cat(said), model, out, places_in(bundle.compared_rows))


def scoring_class(config: PreTrainedConfig, source: str) -> type[PreTrainedModel]:
    """Return the sequence classifier of a family of models. Raises: ModelError when there is none
    whose head is one linear layer without a bias."""
    found = _class(config)
    if found is not None:
        with torch.device("meta"):
            model = found(_one_label(config, None))
        head = getattr(model, HEAD, None)
        if isinstance(head, nn.Linear) and head.bias is None and backbone_name(model) is not None:
            return found
    raise ModelError(
        f"model.path {source}: transformers has no sequence classifier of {config.model_type!r} "
        f"with a linear layer {HEAD!r}, as which a reward model is saved; use another family, such "
        "as llama or qwen2"
    )


def score_weight(source: str) -> Tensor | None:
    """Return the weight [1, H] of the score head in a folder or hub id; None if it is no reward
    model."""
    from safetensors import safe_open
    from transformers import AutoConfig
    from transformers.utils.hub import cached_file

    name, _, revision = source.partition("@")
    config = AutoConfig.from_pretrained(name, revision=revision or None)
    if not any(one.endswith("ForSequenceClassification") for one in config.architectures or ()):
        return None
    find = partial(
        cached_file,
        name,
        revision=revision or None,
        _raise_exceptions_for_missing_entries=False,
    )
    file = find("model.safetensors") or _shard_of(WEIGHT, find)
    if file is not None:
        with safe_open(file, "pt") as tensors:
            if WEIGHT in list(tensors.keys()):
                return tensors.get_tensor(WEIGHT).float()
    raise ModelError(
        f"model.path {source}: a sequence classifier without {WEIGHT} in its safetensors; give the "
        "language model it was made from"
    )


def _shard_of(name: str, find: Any) -> str | None:
    import json

    index = find("model.safetensors.index.json")
    if index is None:
        return None
    shard = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].get(name)
    return None if shard is None else find(shard)


def _class(config: PreTrainedConfig) -> Any:
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    found = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
    if isinstance(found, tuple):
        return found[0]
    return found


def _one_label(config: PreTrainedConfig, padding: int | None) -> PreTrainedConfig:
    config = copy.deepcopy(config)
    config.num_labels, config.pad_token_id = 1, padding
    return config


def _classifier(policy_model: Any, bundle: ScoreBundle) -> PreTrainedModel:
    """Return a classifier around the policy's own modules."""
    config = _one_label(policy_model.config, bundle.padding)
    with torch.device("meta"):
        model = _class(config)(config)
    backbone = backbone_of(policy_model)
    model._modules[str(backbone_name(model))] = backbone
    model._modules[HEAD] = head_of(policy_model)
    # As in the base's folder, so that a language model loads from this one, too.
    model.config.tie_word_embeddings = _is_tied(bundle.source)
    return model


def _is_tied(source: str) -> bool:
    from transformers import AutoConfig

    name, _, revision = source.partition("@")
    config = AutoConfig.from_pretrained(name, revision=revision or None)
    return bool(getattr(config, "tie_word_embeddings", False))


def _scores_of(model: Any, row: TokenRow) -> Tensor:
    """Return the scores before each of a row's last tokens, by the classifier's own forward."""
    ends = range(len(row.ids_L) - row.num_reply, len(row.ids_L))
    with torch.no_grad():
        scores = [model(input_ids=row.ids_L[None, :end]).logits[0, 0] for end in ends]
    return torch.stack(scores).float()
