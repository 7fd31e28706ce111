"""Rows are no longer than a model has positions for, whatever its config calls them."""

from typing import Any

import pytest
import transformers

from rl_core.errors import ModelError
from rl_core.models.checks.row_length import (
    check_lengths,
    limit_note,
    longest_row,
    longest_row_of,
    row_limit,
)
from rl_core.models.checks.shape import CAUSAL, classes_of
from rl_core.runs.recipes import parse_recipe
from schemas.recipe import Recipe

LONGROPE = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}
VALUES: dict[str, Any] = {
    "name": "x",
    "model": {"path": "some/model"},
    "data": {"train": ["t"], "eval": ["e"], "max_prompt_length": 64},
    "rollout": {"max_new_tokens": 32},
    "evaluation": {"max_new_tokens": 32},
}


def recipe(**changes: dict[str, Any]) -> Recipe:
    return parse_recipe(
        {**VALUES, **{key: {**VALUES.get(key, {}), **one} for key, one in changes.items()}}
    )


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({"max_position_embeddings": 128}, 128),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 96}, "max_position_embeddings": 4}, 96),
        ({"max_position_embeddings": 2048, "alibi": True}, None),
        ({"max_position_embeddings": None}, None),
        ({"vocab_size": 5}, None),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": LONGROPE,
                "original_max_position_embeddings": 4096,
            },
            4096,
        ),
        (
            {
                "max_position_embeddings": 99,
                "rope_parameters": {**LONGROPE, "original_max_position_embeddings": 8},
            },
            8,
        ),
        ({"max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, 64),
        ({"max_position_embeddings": 4096, "keep_window_size": 2048}, 2048),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                },
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 500,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default"},
                    "full_attention": {**LONGROPE, "original_max_position_embeddings": 50},
                },
            },
            50,
        ),
    ],
)
def test_the_longest_row_is_read_from_the_config(
    config: dict[str, Any], longest: int | None
) -> None:
    found = longest_row(config)
    assert (found and found.num_tokens) == longest


def test_every_causal_family_is_read_as_transformers_reads_it() -> None:
    """What `config.json` says under a family's own names is what the loaded config answers to the
    usual one."""
    compared = 0
    for kind in sorted(classes_of(CAUSAL)):
        try:
            config = transformers.AutoConfig.for_model(kind).get_text_config(decoder=True)
        except Exception:  # families without defaults
            continue
        if getattr(config, "is_encoder_decoder", False) or longest_row(config.to_dict()) is None:
            continue
        asked = getattr(config, "max_position_embeddings", None)
        found = longest_row(config.to_dict())
        assert found is not None
        if isinstance(asked, int):
            compared += 1
            assert found.num_tokens <= asked, kind
    assert compared > 80


@pytest.mark.parametrize(
    ("model_type", "name", "longest"),
    [
        ("gpt2", "n_positions", 48),
        ("llama", "max_position_embeddings", 48),
        ("dbrx", "max_seq_len", 48),
    ],
)
def test_a_loaded_model_says_the_same_by_any_name(model_type: str, name: str, longest: int) -> None:
    model = type(
        "Model", (), {"config": transformers.AutoConfig.for_model(model_type, **{name: longest})}
    )
    found = longest_row_of(model)
    assert found is not None and found.num_tokens == longest


def test_recurrences_and_biases_by_distance_have_no_longest_row() -> None:
    for kind in ("mamba", "mamba2", "rwkv", "bloom", "recurrent_gemma"):
        model = type("Model", (), {"config": transformers.AutoConfig.for_model(kind)})
        assert longest_row_of(model) is None, kind


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"data": {"max_prompt_length": 100}},
            r"has 128 positions \(max_position_embeddings\), but rows may have 132 tokens "
            r"\(data.max_prompt_length 100 \+ rollout.max_new_tokens 32\); lower data.max_prompt_length or "  # noqa: E501
            r"rollout.max_new_tokens until both fit, or set rollout.max_context_length to 128 or less",  # noqa: E501
        ),
        (
            {"evaluation": {"max_new_tokens": 100}},
            r"164 tokens \(data.max_prompt_length 64 \+ evaluation.max_new_tokens 100\)",
        ),
        (
            {"rollout": {"max_context_length": 129}},
            r"rollout.max_context_length is 129, but model.path some/model has 128 .*; set it to 128 or less",  # noqa: E501
        ),
    ],
)
def test_a_recipe_beyond_the_positions_is_refused_with_what_would_be_right(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        check_lengths(recipe(**changes), {"max_position_embeddings": 128})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data": {"max_prompt_length": 96}},
        {"rollout": {"max_context_length": 128}},
        {"data": {"max_prompt_length": 4000}, "rollout": {"max_context_length": 100}},
    ],
)
def test_rows_that_fit_are_not_refused(changes: dict[str, Any]) -> None:
    check_lengths(recipe(**changes), {"max_position_embeddings": 128})


def test_defaults_make_way_for_a_small_model_and_what_is_asked_for_does_not() -> None:
    values = {key: value for key, value in VALUES.items() if key not in ("rollout", "evaluation")}
    values["data"] = {"train": ["t"], "eval": ["e"]}
    check_lengths(parse_recipe(values), {"max_position_embeddings": 128})
    with pytest.raises(
        ModelError, match=r"rows may have 129 tokens \(rollout.max_new_tokens 129\)"
    ):
        check_lengths(
            parse_recipe({**values, "rollout": {"max_new_tokens": 129}}),
            {"max_position_embeddings": 128},
        )
    with pytest.raises(
        ModelError, match=r"data.max_prompt_length 100 \+ rollout.max_new_tokens 256"
    ):
        values["data"]["max_prompt_length"] = 100
        check_lengths(parse_recipe(values), {"max_position_embeddings": 128})


def test_pairs_are_held_to_the_positions_too() -> None:
    pairs: dict[str, Any] = {**VALUES, "domain": "preference", "algorithm": {"name": "dpo"}}
    del pairs["rollout"]
    check_lengths(parse_recipe(pairs), {"max_position_embeddings": 128})
    with pytest.raises(ModelError, match=r"preference.max_length is 200, but .* has 128 positions"):
        check_lengths(
            parse_recipe({**pairs, "preference": {"max_length": 200}}),
            {"max_position_embeddings": 128},
        )


def test_long_rotations_end_where_they_would_switch() -> None:
    config = {
        "max_position_embeddings": 131072,
        "rope_scaling": LONGROPE,
        "original_max_position_embeddings": 80,
    }
    with pytest.raises(
        ModelError, match="changes its longrope frequencies beyond its original_max_pos"
    ):
        check_lengths(recipe(), config)


def test_an_unset_limit_is_the_models_own_and_is_said() -> None:
    longest = longest_row({"max_position_embeddings": 128})
    assert row_limit(None, longest, "key", "Tiny") == 128
    assert row_limit(100, longest, "key", "Tiny") == 100
    assert row_limit(None, None, "key", "Tiny") == 2048
    assert "key is 128, not 2048: Tiny has 128 positions" in str(
        limit_note(None, longest, "key", "Tiny")
    )
    assert limit_note(100, longest, "key", "Tiny") is None
