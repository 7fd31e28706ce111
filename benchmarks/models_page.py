"""docs/models.md: the results of `benchmarks.check_models`, as a table with numbered reasons."""

from __future__ import annotations

import re
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.page import table

if TYPE_CHECKING:
    from benchmarks.check_models import Cell, Family

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
HEAD = """# Models

{summary}

## How it is found out

The policy is the model: transformers' own forward, a row by itself, without padding or cache.
Training and sampling compute it in quicker ways, and each of these depends on how a family of
models is written. So the model is compared with itself whenever it is loaded. A few rows of
different lengths, with siblings and with windows of attention that are shorter than the rows, go
through every way that a run could use: padded batches, rows packed end to end, prompts that
siblings share, token by token over a cache, and the modules of `rl-train` in the place of the
model's own. A way that differs is not used. The log and the report say which one, why, and what is
done instead; where nothing else would be right, the run is refused before it starts. Workers that
share weights or sequences (`placement.tp_size`, `placement.sp_size`) compare the same rows once
more.

This page is the check of that check, written by `make check-models`. Every family of causal and
conditional (image-text-to-text) language models of transformers {transformers} is built as a tiny
model with random weights in float32, saved, and computed by plain transformers:
`from_pretrained(folder)(ids).logits`, row by row. Its log-probabilities are compared with those of
`rl-train` on torch {torch}, on a CPU:

| column | what is compared |
| --- | --- |
| own forward | the policy on single rows: log-probabilities and entropies, at temperatures 1 and 0.7 |
| padded, packed, shared | what `TrainStack` measures on ragged rows with siblings: padded, packed, prompts shared |
| decode | what sampling says of the words that it drew, at both temperatures, and what the model says |
| TP 2, SP 2 | the padded pass and sampling on two workers that share weights or sequences |
| export | the policy after a step, of all weights and of adapters, and the exported folder in plain transformers |
| sync | the same policy, and a dedicated engine that was sent its weights: all, merged, and as adapters |

A cell gives the largest difference of all. Up to {alike:g} of the standard deviation of the
log-probabilities (about 2 nats) it is **equal**, more where rounding errors of the weights
themselves change the model's answers by more. Where a path **falls back** another is taken instead,
which is equal. What is **refused** ends with a message before anything is trained. The numbers in
brackets are those of the reasons below the table. Pictures and sounds are left out here: models
that also see are computed on text.
"""
INSTEAD = {
    "own forward": "modules of transformers compute in the place of ours: a little slower",
    "padded": (
        "rows are computed one by one, and each prompt's replies are decoded by themselves: "
        "several times slower"
    ),
    "packed": "rows are padded, which is the default; a recipe that asks for packing by "
    "`placement.max_tokens_per_micro_batch` is refused",
    "shared": "the prompt is computed again for each reply to it: slower with long prompts",
    "decode": "every token is decoded over the whole row again: slow, above all with long replies",
    "TP 2": "a recipe with `placement.tp_size` is refused; without, nothing changes",
    "SP 2": "a recipe with `placement.sp_size` is refused; without, nothing changes",
    "export": "what a recipe asks for is refused with what to ask for instead",
    "sync": "what a recipe asks for is refused with what to ask for instead",
}
"""Replacement of each path that is not taken, and its cost."""


class Reasons:
    """Reasons of cells that are not equal, numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, why: str) -> int:
        """Return the number of a reason; reasons that differ only in figures and names share
        one."""
        return self._numbers.setdefault(_general(why), len(self._numbers) + 1)

    def lines(self) -> list[str]:
        """Return all reasons, in order."""
        return [f"{number}. {why}" for why, number in self._numbers.items()]


def write(families: list[Family], columns: tuple[str, ...], alike: float, num_types: int) -> None:
    """Write the page.

    Args: columns: of the table. alike: largest difference of an equal cell. num_types: number of
    existing types.
    """
    PAGE.write_text(text(families, columns, alike, num_types), encoding="utf-8")


def text(families: list[Family], columns: tuple[str, ...], alike: float, num_types: int) -> str:
    """Return the text of the page."""
    reasons = Reasons()
    loaded = [family for family in families if family.cells and not family.refused]
    rows = []
    for family in loaded:
        rows.append(
            [
                f"`{family.model_type}`",
                *(_cell(family.cells[column], reasons) for column in columns),
            ]
        )
    head = HEAD.format(
        summary=summary(families, columns, num_types),
        transformers=version("transformers"),
        torch=version("torch"),
        alike=alike,
    )
    parts = [
        head,
        "## By family",
        table(["family", *columns], rows),
        "Reasons:",
        "\n".join(reasons.lines()),
    ]
    if refused := [family for family in families if family.refused]:
        parts += [
            "## Refused when they are loaded",
            _listed([(one.model_type, one.refused) for one in refused]),
        ]
    if not_built := [family for family in families if family.not_built]:
        parts += [
            "## Not compared",
            _listed([(one.model_type, one.not_built) for one in not_built]),
        ]
    if len(revisions := _revisions(families)) > 1:
        parts += [
            "## Revisions of the code",
            "\n".join(f"* {one}: {', '.join(n)}" for one, n in revisions.items()),
        ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _revisions(families: list[Family]) -> dict[str, list[str]]:
    """List the types by the revision of the code with which they were checked."""
    found: dict[str, list[str]] = {}
    for family in families:
        found.setdefault(f"`{family.revision[:7]}`", []).append(f"`{family.model_type}`")
    return dict(sorted(found.items()))


def summary(families: list[Family], columns: tuple[str, ...], num_types: int) -> str:
    """Summarise the page: how many types are equal everywhere, and the cost for the others."""
    loaded = [family for family in families if family.cells and not family.refused]
    verdicts = []
    for family in loaded:
        verdicts.append({str(cell.verdict) for cell in family.cells.values()})
    num_equal = sum(found == {"equal"} for found in verdicts)
    num_bad = sum(bool(found & {"WRONG", "fails"}) for found in verdicts)
    num_refused, num_not_built = (
        sum(bool(getattr(one, name)) for one in families) for name in ("refused", "not_built")
    )
    lines = [
        f"transformers {version('transformers')} has {num_types} types of language models. "
        "Compared with plain transformers, on every path by which `rl-train` trains, samples, "
        "exports and sends weights:",
        "",
        f"* **{num_equal} types are equal on every path.**",
        f"* {len(loaded) - num_equal - num_bad} types are trained just as correctly, but without some of "
        "the quick paths: the table below says which, and what that costs.",
        f"* {num_refused} types are refused when they are loaded, with the reason, which is "
        "given below the table.",
        f"* {num_not_built} types could not be compared: no tiny model of them can be made, or "
        "plain transformers does not compute rows of text. They stand at the end.",
    ]
    if num_bad:
        lines.append(
            f"* **{num_bad} types have a path that is wrong or breaks**: WRONG or fails in the "
            "table."
        )
    if missing := num_types - len(families):
        lines.append(f"* {missing} types were not looked at in this sweep.")
    if len(_revisions(families)) > 1:
        lines.append(
            "* The rows are of several revisions of the code, which are listed at the end: what "
            "is wrong in an older one may be fixed since, and has not been checked again."
        )
    return "\n".join([*lines, "", _costs(loaded, columns)])


def _costs(loaded: list[Family], columns: tuple[str, ...]) -> str:
    """Count the types without each path, with the path's replacement."""
    rows = []
    for column in columns:
        counts = Counter(family.cells[column].verdict for family in loaded)
        if number := counts["falls back"] + counts["refused"]:
            rows.append([column, f"{number} of {len(loaded)}", INSTEAD[column]])
    if rows:
        return table(["path", "types without it", "what is done instead"], rows)
    return "No path is left out."


def _cell(cell: Cell, reasons: Reasons) -> str:
    size = "" if cell.difference is None else f" {cell.difference:.0e}"
    why = f" ({reasons.number(cell.why)})" if cell.why else ""
    return f"{cell.verdict}{size}{why}"


def _listed(pairs: list[tuple[str, str]]) -> str:
    """List families by reason."""
    families: dict[str, list[str]] = {}
    for family, why in pairs:
        families.setdefault(_general(why), []).append(f"`{family}`")
    return "\n".join(f"* {', '.join(names)}: {why}" for why, names in families.items())


def _general(why: str) -> str:
    """Remove the figures and names of a single model from a reason."""
    why = re.sub(r"\S*/check-models-\w+/", "", why)
    why = re.sub(r"\bby up to [\d.e+-]+", "", why)
    why = re.sub(
        r"\bdiffers? from its own forward by [\d.e+-]+ in the mean and [\d.e+-]+ at most",
        "differs",
        why,
    )
    why = re.sub(
        r"\b[A-Z]\w*(ForCausalLM|LMHeadModel|ForConditionalGeneration)\b", "the model", why
    )
    # A line of a library says nothing to a reader.
    why = re.sub(r", in \w+\.py:\d+$", "", why)
    return re.sub(r"\s+", " ", why).strip()
