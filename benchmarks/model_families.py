"""Tiny models with random weights of every family of language models in the installed transformers.

A family's own config class has its settings; sizes become small (`SIZES`, by name), lists with an
entry per layer are cut to the number of layers, and every kind of layer remains. `FAMILIES` has
what a family needs besides. Weights have a large spread, biases and norms differ from channel to
channel, and attention windows are shorter than the rows of a check, so that anything that a path
leaves out changes the log-probabilities.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerFast

VOCABULARY = 97
PAD, BOS, EOS, FIRST_SPECIAL, FIRST_WORD = 0, 1, 2, 3, 40
"""Token ids; those between `FIRST_SPECIAL` and `FIRST_WORD` are placeholders of pictures and
sounds."""
NUM_LAYERS, HEADS, KEY_HEADS, HEAD, HIDDEN, BETWEEN = 4, 4, 2, 16, 64, 96
WINDOW, CHUNK = 6, 8
SPREAD = 0.25
"""Standard deviation of the weights of a matrix."""

# fmt: off
_NAMES: list[tuple[float, str]] = [
    (VOCABULARY, (
        "vocab_size vocab_size_per_layer_input encoder_vocab_size decoder_vocab_size "
        "unpadded_vocab_size"
    )),
    (NUM_LAYERS,
        "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers "
        "num_encoder_layers num_blocks num_decoder_layers depth"),
    (2,
        "num_key_value_heads num_kv_heads num_query_groups num_experts_per_tok moe_k moe_topk "
        "num_experts_per_token top_k_experts swa_num_key_value_heads linear_num_key_heads "
        "n_group topk_group num_expert_group mamba_n_groups n_groups mamba_ngroups "
        "layer_group_size index_topk_blocks attn_layer_period expert_layer_period n_mamba_heads "
        "moe_layer_interval insert_layer_id layers_per_block num_kv_shared_layers "
        "n_layers_per_attn_res_block no_rope_layer_interval sliding_window_pattern "
        "_sliding_window_pattern global_attn_every_n_layers o_groups num_codebooks hash_k"),
    (HEADS,
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
        "encoder_attention_heads attention_heads num_encoder_attention_heads "
        "num_decoder_attention_heads linear_num_heads linear_num_value_heads "
        "swa_num_attention_heads num_experts num_local_experts n_routed_experts moe_num_experts "
        "mamba_num_heads index_block_size index_topk num_random_blocks zero_expert_num "
        "resampler_heads latent_query_num"),
    (HEAD,
        "head_dim dim_head d_head kv_channels attention_head_size linear_head_dim "
        "linear_key_head_dim linear_value_head_dim swa_head_dim global_head_dim index_head_dim "
        "mamba_headdim mamba_d_head mamba_head_dim d_kv kv_lora_rank q_lora_rank o_lora_rank "
        "v_head_dim qk_nope_head_dim query_pre_attn_scalar laurel_rank "
        "hidden_size_per_layer_input adapter_rank router_hidden_size gated_norm_rank d_rel "
        "ple_embed_dim resampler_dim_head hc_lowrank"),
    (8,
        "qk_rope_head_dim rotary_dim mamba_d_state ssm_state_size state_size mamba_chunk_size "
        "chunk_size mamba_dt_rank time_step_rank block_size local_attn_chunk_length "
        "attention_chunk_size max_inference_chunksize"),
    (HIDDEN,
        "hidden_size d_model n_embd emb_dim embedding_dim embedding_size input_embedding_size "
        "output_embedding_size word_embed_proj_dim attention_hidden_size dim_model lru_width "
        "out_hidden_size projection_dim backbone_hidden_size embed_dim num_channels_out "
        "merged_hidden_size encoder_hidden_size text_hidden_size output_dim vision_hidden_size "
        "image_text_hidden_size"),
    (BETWEEN,
        "intermediate_size ffn_dim d_ff d_inner dff dim_ff ffn_hidden_size decoder_ffn_dim "
        "encoder_ffn_dim intermediate_size_mlp expert_ffn_hidden_size feed_forward_size "
        "projector_hidden_size dense_intermediate_size"),
    # Scores of few heads are all zero for some keys, and which of those are chosen is anyone's
    # guess.
    (32, "index_n_heads"),
    (32,
        "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size mlp_dim "
        "moe_shared_expert_intermediate_size shared_experts_intermediate_size "
        "alignment_intermediate_size projection_hidden_size rel_extent"),
    (256,
        "max_position_embeddings n_positions max_seq_len max_target_positions context_length n_ctx "
        "original_max_position_embeddings model_max_length prompt_length_max floor_scale"),
    (WINDOW,
        "sliding_window window_size attention_window_size local_attention sliding_window_size "
        "local_attention_window_len"),
    (1,
        "n_shared_experts num_shared_experts moe_num_shared_experts first_k_dense_replace "
        "moe_layer_start_index num_dense_layers attn_layer_offset expert_layer_offset "
        "num_mem_blocks"),
    (0, "num_nextn_predict_layers max_window_layers num_mtp_layers"),
    (3, "moe_layer_end_index"),
    (4, "patch_size"),
    (SPREAD, "initializer_range init_std"),
]
# fmt: on
SIZES = {name: size for size, names in _NAMES for name in names.split()}
"""Small values of settings, by name."""


def shrunk(config_class: Any, **changes: Any) -> dict[str, Any]:
    """Return settings of a config class for a tiny model. Args: changes: values that replace them;
    those of a sub-config are under its name."""
    default = config_class()
    known: dict[str, Any] = default.to_dict()
    num_layers = next(
        (
            known[name]
            for name in SIZES
            if SIZES[name] == NUM_LAYERS and isinstance(known.get(name), int)
        ),
        0,
    )
    small: dict[str, Any] = {}
    special = FIRST_SPECIAL
    for name, value in known.items():
        part = getattr(default, name, None) if name in config_class.sub_configs else None
        if part is not None:
            small[name] = shrunk(type(part), **changes.get(name, {})) | {
                "model_type": type(part).model_type
            }
        elif name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            small[name] = {"pad": PAD, "bos": BOS, "eos": EOS}[name[:3]]
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
            small[name], special = special, special + 1
        elif name in SIZES and isinstance(value, int | float) and not isinstance(value, bool):
            small[name] = SIZES[name]
        elif isinstance(value, list) and num_layers and len(value) == num_layers:
            small[name] = _per_layer(value)
        elif name == "rope_parameters" and isinstance(value, dict):
            small[name] = _rope(value)
    if "head_dim" in known and known["head_dim"] is None:
        small["head_dim"] = HEAD
    if "qk_rope_head_dim" in known:
        # Multi-head latent attention, with keys for every head, of whose features a part is turned.
        small |= {
            name: size
            for name, size in (("head_dim", 8), ("num_key_value_heads", HEADS))
            if name in known
        }
    small |= {
        name: value for name, value in changes.items() if name not in config_class.sub_configs
    }
    return {name: value for name, value in small.items() if value != "unset"}


def _per_layer(values: list[object]) -> list[object]:
    """Return one entry per layer, with every kind of entry."""
    kinds: list[object] = []
    for value in values:
        if value not in kinds:
            kinds.append(value)
    return [kinds[layer % min(len(kinds), NUM_LAYERS)] for layer in range(NUM_LAYERS)]


def _rope(settings: dict[str, Any]) -> dict[str, object]:
    """Return settings of rotary embeddings, with sections for several axes that fit a small
    head."""
    small: dict[str, object] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            small[name] = _rope(value)
        elif name == "mrope_section":
            turned = int(HEAD / 2 * settings.get("partial_rotary_factor", 1.0))
            small[name] = [turned - 2 * (turned // 3), turned // 3, turned // 3]
        elif name == "original_max_position_embeddings":
            small[name] = SIZES["max_position_embeddings"]
        else:
            small[name] = value
    return small


def model_types() -> list[str]:
    """Return all types of causal and of image-text-to-text language models, in alphabetical
    order."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES})


def auto_class(model_type: str) -> Any:
    """Return the auto class that loads a type."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return AutoModelForCausalLM
    return AutoModelForImageTextToText


DECODERS = (
    *(
        "bert",
        "bert-generation",
        "big_bird",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
    ),
    *(
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm-roberta",
        "xlm-roberta-xl",
    ),
)
"""Types whose attention is bidirectional by default."""
GRIDS = (
    "glm4v",
    "glm46v",
    "glmga",
    "glm_ocr",
    "paddleocr_vl",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen2_5_omni_thinker",
)
"""Types whose positions have several axes."""
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 16}
DOUBLE = {"attention_hidden_size": 2 * HIDDEN, "attention_head_dim": 2 * HEAD}
CHANGES: dict[str, dict[str, Any]] = {
    **{name: {"is_decoder": True} for name in DECODERS},
    **{
        name: {"text_config": {"rope_parameters": {**ROPE, "mrope_section": [4, 2, 2]}}}
        for name in GRIDS
    },
    **{name: {"logit_scale": 0.5} for name in ("cohere", "cohere2", "cohere2_moe")},
    "bamba": MAMBA_2 | {"attn_layer_indices": [1, 3]},
    "chameleon": {"vocabulary_map": {"<image>": FIRST_SPECIAL}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "dbrx": {
        "attn_config": {"kv_n_heads": KEY_HEADS, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": BETWEEN, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_ocr2": {
        "text_config": {"mlp_layer_types": ["dense", "sparse"] * 2, "num_experts_per_tok": 2}
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {"vision_config": {"adapter_in_dim": HIDDEN}},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {**ROPE, "mrope_section": [2, 2, 4]}}},
    "falcon_h1": MAMBA_2 | {"mamba_d_ssm": 2 * HIDDEN},
    "glm4v_moe": {
        "text_config": {
            "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
        }
    },
    "glm5_next": {"text_config": {"index_kpool": 2}},
    "granitemoehybrid": MAMBA_2 | {"layer_types": ["mamba", "attention"] * 2},
    "hrm_text": {"num_layers_per_stack": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": KEY_HEADS},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": HEAD,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "step3p7": {"text_config": {"sliding_window": WINDOW}},
    "xlm": {"causal": True},
    "xlnet": {"attn_type": "uni"},
    "xmod": {"is_decoder": True, "default_language": "en_XX"},
    "zamba": DOUBLE,
    "zamba2": DOUBLE | {"n_mamba_heads": 8},
    "zaya": {"num_experts_per_tok": 1},
}
"""Changed settings of single types, which their names do not determine."""
CHANGES |= {
    name: {"text_config": CHANGES[f"{name}_text"]} for name in ("cohere_compass", "qwen4_exp")
}


def model_class(model_type: str) -> type:
    """Return the model class of a type."""
    from transformers import CONFIG_MAPPING

    return auto_class(model_type)._model_mapping[CONFIG_MAPPING[model_type]]


def build(model_type: str, folder: Path) -> None:
    """Save a tiny model of a type with random weights, and a tokenizer."""
    import torch
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[model_type]
    config = config_class(**shrunk(config_class, **CHANGES.get(model_type, {})))
    torch.manual_seed(0)
    model = auto_class(model_type).from_config(config, dtype=torch.float32)
    spread(model)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a word for every token of the vocabulary, and a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", *(f"w{token}" for token in range(FIRST_SPECIAL, VOCABULARY))]
    # Some tokenizer classes, as Qwen2's, add this word where it is missing, beyond the embedding.
    words[FIRST_WORD - 1] = "<|endoftext|>"
    backend = Tokenizer(
        models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="<pad>")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template="{% for message in messages %}{{ message['content'] }} {% endfor %}",
    )


def spread(model: nn.Module) -> None:
    """Increase the effect of all weights, and make it differ from channel to channel."""
    import torch

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point():
                continue
            if parameter.dim() > 1:
                found = float(parameter.std()) if parameter.numel() > 1 else 0.0
                if 0 < found < SPREAD:
                    parameter.mul_(SPREAD / found)
                # A word of zeros, as padding is, has no scores that anything could be chosen by.
                is_empty = (parameter == 0).flatten(1).all(1)
                parameter[is_empty] = SPREAD * torch.randn(
                    parameter[is_empty].shape, generator=generator
                )
            else:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
