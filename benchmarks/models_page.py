"""docs/models.md: what `benchmarks.check_models` found, as a table with numbered reasons."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.page import table

if TYPE_CHECKING:
    from benchmarks.check_models import Cell, Family

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
HEAD = """# Models

The policy is the model: transformers' own forward, a row by itself, without padding or cache. Training and sampling
compute it in quicker ways, and each of these depends on how a family of models is written. So the model is compared
with itself whenever it is loaded. A few rows of different lengths, with siblings and with windows of attention that are
shorter than the rows, go through every way that a run could use: padded batches, rows packed end to end, prompts that
siblings share, token by token over a cache, and the modules of `rl-train` in the place of the model's own. A way that
differs is not used. The log and the report say which one, why, and what is done instead; where nothing else would be
right, the run is refused before it starts. Workers that share weights or sequences (`placement.tp_size`,
`placement.sp_size`) compare the same rows once more.

The table below is the check of that check, written by `make check-models`. Every family of causal and conditional
(image-text-to-text) language models of transformers {transformers} is built as a tiny model with random weights in
float32, saved, and computed by plain transformers: `from_pretrained(folder)(ids).logits`, row by row. Its
log-probabilities are compared with those of `rl-train` on torch {torch}, on a CPU:

| column | what is compared |
| --- | --- |
| own forward | the policy on single rows: log-probabilities and entropies, at temperatures 1 and 0.7 |
| padded, packed, shared | what `TrainStack` measures on ragged rows with siblings: padded, packed, prompts shared |
| decode | what sampling says of the words that it drew, at both temperatures, and what the model says |
| TP 2, SP 2 | the padded pass and sampling on two workers that share weights or sequences |
| export | the policy after a step, of all weights and of adapters, and the exported folder in plain transformers |
| sync | the same policy, and a dedicated engine that was sent its weights: all, merged, and as adapters |

A cell gives the largest difference of all. Up to {alike:g} of the standard deviation of the log-probabilities (about 2
nats) it is **equal**. Where a path **falls back** another is taken instead, which is equal. What is **refused**
ends with a message before anything is trained. The numbers in brackets are those of the reasons below the table.
Pictures and sounds are left out here: models that also see are computed on text.
"""


class Reasons:
    """Why cells are not equal, numbered in the order in which they appear."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, why: str) -> int:
        """Of a reason, the same for two that differ in figures and names alone."""
        return self._numbers.setdefault(_general(why), len(self._numbers) + 1)

    def lines(self) -> list[str]:
        """All, in order."""
        return [f"{number}. {why}" for why, number in self._numbers.items()]


def write(families: list[Family], columns: tuple[str, ...], alike: float) -> None:
    """Write the page. Args: columns: of the table. alike: up to which difference a cell is equal."""
    PAGE.write_text(text(families, columns, alike), encoding="utf-8")


def text(families: list[Family], columns: tuple[str, ...], alike: float) -> str:
    """The page."""
    reasons = Reasons()
    loaded = [family for family in families if family.cells and not family.refused]
    rows = [
        [f"`{family.model_type}`", *(_cell(family.cells[column], reasons) for column in columns)] for family in loaded
    ]
    head = HEAD.format(transformers=version("transformers"), torch=version("torch"), alike=alike)
    parts = [head, "## By family", table(["family", *columns], rows), "Reasons:", "\n".join(reasons.lines())]
    if refused := [family for family in families if family.refused]:
        parts += ["## Refused when they are loaded", _listed([(one.model_type, one.refused) for one in refused])]
    if not_built := [family for family in families if family.not_built]:
        parts += ["## Not checked", _listed([(one.model_type, one.not_built) for one in not_built])]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _cell(cell: Cell, reasons: Reasons) -> str:
    size = "" if cell.difference is None else f" {cell.difference:.0e}"
    why = f" ({reasons.number(cell.why)})" if cell.why else ""
    return f"{cell.verdict}{size}{why}"


def _listed(pairs: list[tuple[str, str]]) -> str:
    """Families by reason."""
    families: dict[str, list[str]] = {}
    for family, why in pairs:
        families.setdefault(_general(why), []).append(f"`{family}`")
    return "\n".join(f"* {', '.join(names)}: {why}" for why, names in families.items())


def _general(why: str) -> str:
    """A reason without the figures and names of one model."""
    why = re.sub(r"\bby up to [\d.e+-]+", "", why)
    why = re.sub(r"\bdiffers? from its own forward by [\d.e+-]+ in the mean and [\d.e+-]+ at most", "differs", why)
    why = re.sub(r"\b[A-Z]\w*(ForCausalLM|LMHeadModel|ForConditionalGeneration)\b", "the model", why)
    return re.sub(r"\s+", " ", why).strip()
