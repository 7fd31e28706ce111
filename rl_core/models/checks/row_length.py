"""Limit of a model on the length of rows, and the check of a recipe against it.

A model has a number of positions: beyond them a table of learned positions ends (an IndexError),
and rotations are ones that it was not trained on (no error, but nonsense). With long-range
rotations (`longrope`, `dynamic`) all rows of a batch change their frequencies once the longest of
them is beyond the original length, so a row would depend on the others in its batch, and a reply on
when it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_core.errors import ModelError
from rl_core.models.checks.shape import named, text_part
from schemas.recipe import EvaluationConfig, Recipe
from schemas.sections.section import Section

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rl_core.models.policy import TokenPolicy
    from schemas.sections.rollout import RolloutConfig

USUAL_CONTEXT = 2048
"""Default limit on the tokens of a conversation, or of a pair."""
CONTEXT_KEY, PAIR_KEY = "rollout.max_context_length", "preference.max_length"
SFT_KEY = "sft.max_length"
SWITCHING = ("longrope", "su", "dynamic")
"""Rotations whose frequencies follow the longest row of a batch."""


@dataclass(frozen=True)
class LongestRow:
    """Largest number of tokens of a row that a model was trained for."""

    num_tokens: int
    why: str
    """Reason of the limit, to follow "the model"."""


def longest_row(config: Mapping[str, object]) -> LongestRow | None:
    """Return the limit of a `config.json`; None for models without positions (recurrences, ALiBi),
    or if none is stated."""
    shape = named(config)
    if shape.get("alibi") is True:
        return None
    positions = _number(shape.get("max_position_embeddings"))
    found: list[LongestRow] = []
    for rope in _rotations(text_part(config)):
        kind = rope.get("rope_type") or rope.get("type")
        original = _number(rope.get("original_max_position_embeddings"))
        original = original or _number(shape.get("original_max_position_embeddings"))
        if kind in SWITCHING:
            original = original or (positions if kind == "dynamic" else None)
            if original is not None:
                why = (
                    f"changes its {kind} frequencies beyond its original_max_position_embeddings "
                    f"of {original}"
                )
                found.append(LongestRow(original, why))
        elif original and positions:
            # YaRN configs often state the length before stretching.
            factor = rope.get("factor")
            stretched = original * factor if isinstance(factor, int | float) else 0
            positions = max(positions, int(stretched))
    if (kept := _number(shape.get("keep_window_size"))) is not None:
        # Doge scores keys by their tokens alone: if several are equal, which one is dropped depends
        # on the length of the row.
        found.append(
            LongestRow(
                kept, f"drops keys beyond {kept} (keep_window_size), of words that repeat any one"
            )
        )
    if positions is not None:
        found.append(LongestRow(positions, f"has {positions} positions (max_position_embeddings)"))
    return min(found, key=lambda one: one.num_tokens, default=None)


def longest_row_of(model: PreTrainedModel) -> LongestRow | None:
    """Return the limit of a loaded transformers model."""
    config = model.config.get_text_config()
    values = config.to_dict()
    # What a family calls otherwise is known here, and what its config.json leaves out.
    theirs = getattr(config, "attribute_map", {}).get("max_position_embeddings")
    if theirs not in (None, "context_length"):  # RWKV's is a limit of one kernel, not of the model
        values["max_position_embeddings"] = values.get(theirs)
    return longest_row(values)


def row_limit(asked: int | None, longest: LongestRow | None, key: str, model: str) -> int:
    """Return the limit of a row in tokens: the recipe's, else the default, or the model's if that
    is smaller.

    Args: asked: value in the recipe, under `key`. model: its name. Raises: ModelError when the
    model's limit is smaller than that.
    """
    if longest is None:
        return USUAL_CONTEXT if asked is None else asked
    if asked is not None and asked > longest.num_tokens:
        raise ModelError(
            f"{key} is {asked}, but {model} {longest.why}; set it to {longest.num_tokens} or less"
        )
    if asked is None:
        return min(USUAL_CONTEXT, longest.num_tokens)
    return asked


def limit_note(asked: int | None, longest: LongestRow | None, key: str, model: str) -> str | None:
    """Return a line if the model makes the limit smaller than the default; else None."""
    if asked is not None or longest is None or longest.num_tokens >= USUAL_CONTEXT:
        return None
    what = {
        PAIR_KEY: "pairs with a longer row teach nothing",
        SFT_KEY: "longer rows teach nothing",
    }.get(key, "a conversation that reaches it is cut off")
    return f"{key} is {longest.num_tokens}, not {USUAL_CONTEXT}: {model} {longest.why}; {what}"


def row_limit_of(policy: TokenPolicy, asked: int | None, key: str) -> tuple[int, str | None]:
    """Return `row_limit` and `limit_note` of a loaded policy. Raises: ModelError."""
    model = policy.language_model
    longest, name = longest_row_of(model), type(model).__name__
    return row_limit(asked, longest, key, name), limit_note(asked, longest, key, name)


def check_lengths(recipe: Recipe, config: Mapping[str, object]) -> None:
    """Check that rows of a run do not exceed the model's limit.

    Raises: ModelError naming what would be right.
    """
    longest, model = longest_row(config), f"model.path {recipe.model.path}"
    if recipe.has_pairs:
        row_limit(recipe.preference.max_length, longest, PAIR_KEY, model)
        return
    if recipe.has_answers:
        row_limit(recipe.sft.max_length, longest, SFT_KEY, model)
    asked = recipe.rollout.max_context_length
    row_limit(asked, longest, CONTEXT_KEY, model)
    if longest is None or asked is not None:
        return
    # What nobody chose is no promise: the limit of conversations follows the model then, and the
    # log says so. What is drawn is counted by another tokenizer, and asked for in a question that
    # is longer.
    prompt = 0 if recipe.draws else _stated(recipe.data, "max_prompt_length")
    sections: dict[str, RolloutConfig | EvaluationConfig] = {
        "rollout.max_new_tokens": recipe.rollout,
        "evaluation.max_new_tokens": recipe.evaluation,
    }
    if recipe.has_answers:
        del sections["rollout.max_new_tokens"]
    replies: dict[str, int] = {
        key: section.max_new_tokens if prompt else _stated(section, "max_new_tokens")
        for key, section in sections.items()
    }
    key = max(replies, key=lambda one: replies[one])
    if (reached := prompt + replies[key]) > longest.num_tokens:
        said = f"data.max_prompt_length {prompt} + " if prompt else ""
        lower = f"data.max_prompt_length or {key}" if prompt else key
        raise ModelError(
            f"{model} {longest.why}, but rows may have {reached} tokens ({said}{key} "
            f"{replies[key]}); lower {lower} until both fit, or set {CONTEXT_KEY} to "
            f"{longest.num_tokens} or less, which cuts replies off there"
        )


def _stated(section: Section, key: str) -> int:
    """Return a number of a recipe's section; 0 if it is the default, as recorded recipes leave it
    out."""
    value = getattr(section, key)
    if value == type(section).model_fields[key].default:
        return 0
    return value


def _rotations(config: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the parameters of rotary embeddings: one set, or one for each type of layer."""
    found = [config.get(name) for name in ("rope_parameters", "rope_scaling")]
    sets = [one for one in found if isinstance(one, Mapping)]
    by_layer_type = []
    for one in sets:
        by_layer_type.extend(part for part in one.values() if isinstance(part, Mapping))
    return sets + by_layer_type


def _number(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return None
