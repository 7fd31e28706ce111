"""Model card: the README.md of an exported folder, made from its lineage, with the metadata that
the Hugging Face Hub reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rl_core.data.store.atomic import atomic_write_text
from rl_core.runtime.secrets import redact
from rl_core.tracking.lineage import Lineage, RunLineage
from schemas.domains import TRAITS, Domain, ModelKind
from schemas.receipts import EvalReceipt, SetReceipt

README = "README.md"
CARD_OF = "by rl-train (recipe "
"""Text that only a card of this module has."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_LIBRARY = {ModelKind.PIPELINE: "diffusers"}
_TASK = {
    ModelKind.TEXT: "text-generation",
    ModelKind.SEEING: "image-text-to-text",
    ModelKind.PIPELINE: "text-to-image",
    ModelKind.UNIFIED: "any-to-any",
}


def write_card(
    folder: Path,
    lineage: RunLineage,
    final: EvalReceipt | None = None,
    baseline: EvalReceipt | None = None,
) -> None:
    """Write the card of a model into its folder, in place of any other.

    Args: lineage: of a version, or of a run for one of its iterations. final, baseline: its
    evaluations before and after training; without them the card has the registered numbers.
    """
    atomic_write_text(folder / README, model_card(folder, lineage, final, baseline))


def ensure_card(folder: Path, lineage: RunLineage) -> None:
    """Write the card of a folder that has none of this module: an older version's, or the empty
    form that peft leaves."""
    card = folder / README
    if not card.is_file() or CARD_OF not in card.read_text(encoding="utf-8"):
        write_card(folder, lineage)


def model_card(
    folder: Path,
    lineage: RunLineage,
    final: EvalReceipt | None = None,
    baseline: EvalReceipt | None = None,
) -> str:
    """Return the card's text; see `write_card`."""
    recipe = yaml.safe_load(lineage.recipe)
    name = f"{lineage.name} v{lineage.version}" if isinstance(lineage, Lineage) else folder.name
    parts = [
        f"# {name}",
        _intro(recipe, lineage),
        _scores(lineage, final, baseline),
        _data(lineage),
        _loading(folder, recipe),
        _limits(final),
        _recipe(lineage),
    ]
    metadata = _metadata(folder, name, recipe, lineage, final)
    text = redact("\n\n".join(parts))
    return f"---\n{metadata}\n---\n\n{text}\n"


def _metadata(
    folder: Path,
    name: str,
    recipe: Mapping[str, Any],
    lineage: RunLineage,
    final: EvalReceipt | None,
) -> str:
    """Return the card's YAML block, as huggingface_hub writes it."""
    from huggingface_hub import EvalResult, ModelCardData

    kind = TRAITS[_domain(recipe)].model
    base = str(recipe["model"]["path"]).partition("@")[0]
    results = None
    if final is not None:
        results = [
            EvalResult(
                task_type=_TASK[kind],
                dataset_type="private",
                dataset_name=f"held-out rows ({final.eval_digest[:12]})",
                metric_type="accuracy",
                metric_name="accuracy on held-out rows",
                metric_value=round(final.accuracy, 4),
            )
        ]
    is_adapter = _is_adapter(folder)
    data = ModelCardData(
        # The hub looks a base up, so only one of its own is named.
        base_model=base if _HUB_NAME.fullmatch(base) and not Path(base).exists() else None,
        library_name="peft" if is_adapter else _LIBRARY.get(kind, "transformers"),
        pipeline_tag=_TASK[kind],
        tags=["rl-train", "reinforcement-learning", str(recipe["algorithm"]["name"])],
        model_name=name if results else None,
        eval_results=results,
    )
    return data.to_yaml().strip()


def _intro(recipe: Mapping[str, Any], lineage: RunLineage) -> str:
    algorithm, base = recipe["algorithm"]["name"], recipe["model"]["path"]
    written = [
        f"Trained from `{_shown(base)}` with `{algorithm}` {CARD_OF}`{recipe['name']}`, "
        f"domain `{recipe['domain']}`).",
        f"Run `{lineage.run_id}`, code at `{lineage.git_revision or 'a revision not recorded'}`.",
    ]
    if isinstance(lineage, Lineage):
        written.append(f"Registered {lineage.registered_at} as version {lineage.version}.")
        if lineage.chosen_because:
            chosen = f"These are the weights of iteration {lineage.iteration}"
            written.append(f"{chosen}: {lineage.chosen_because}.")
        written += [f"Champion since {one.at}: {one.reason}." for one in lineage.promotions[-1:]]
    return "\n".join(written)


def _scores(lineage: RunLineage, final: EvalReceipt | None, baseline: EvalReceipt | None) -> str:
    if final is None:
        metrics = lineage.metrics if isinstance(lineage, Lineage) else {}
        rows = [f"| {name} | {value:.4g} |" for name, value in sorted(metrics.items())]
        table = ["| measure | value |", "|---|---|", *rows]
        return "## Scores\n\n" + ("\n".join(table) if rows else "This model was not evaluated.")
    before = {} if baseline is None else baseline.values()
    rows = [
        f"| accuracy | {final.accuracy:.4g} [{final.ci_low:.4g}, {final.ci_high:.4g}] | "
        f"{_before(before, 'accuracy', baseline)} |"
    ]
    intervals = {}
    for name, one in final.sets.items():
        for measure, found in one.measures.items():
            intervals[f"{name}/{measure}"] = found
    for name, value in final.values().items():
        if name == "accuracy":
            continue
        found = intervals.get(name)
        interval = "" if found is None else f" [{found.low:.4g}, {found.high:.4g}]"
        rows.append(f"| {name} | {value:.4g}{interval} | {_before(before, name)} |")
    told = (
        f"On {final.num_rows} held-out rows (digest `{final.eval_digest}`), with 95 % intervals "
        f"where there are some; {final.num_failed} rows gave no verdict."
    )
    sets = [_set(name, one) for name, one in final.sets.items()]
    table = ["| measure | after training | before |", "|---|---|---|", *rows]
    return "\n\n".join(["## Scores", told, "\n".join(table), *sets])


def _before(before: Mapping[str, float], name: str, receipt: EvalReceipt | None = None) -> str:
    if name not in before:
        return ""
    interval = "" if receipt is None else f" [{receipt.ci_low:.4g}, {receipt.ci_high:.4g}]"
    return f"{before[name]:.4g}{interval}"


def _set(name: str, one: SetReceipt) -> str:
    return f"`{name}`: {one.num_prompts} prompts, {one.num_samples} samples of each."


def _data(lineage: RunLineage) -> str:
    cache = lineage.cache
    files = []
    for one in lineage.sources:
        files.append(f"* `{Path(one.path).name}`, sha256 `{one.sha256}`")
    counts = f"{cache.num_train_rows} training rows, {cache.num_eval_rows} held out:"
    return "\n".join(["## Data", "", counts, "", *files])


def _loading(folder: Path, recipe: Mapping[str, object]) -> str:
    kind = TRAITS[_domain(recipe)].model
    if _is_adapter(folder):
        code = (
            "from peft import AutoPeftModelForCausalLM\n\n"
            'model = AutoPeftModelForCausalLM.from_pretrained("FOLDER")'
        )
    elif kind is ModelKind.PIPELINE:
        code = (
            "from diffusers import DiffusionPipeline\n\n"
            'pipeline = DiffusionPipeline.from_pretrained("FOLDER")'
        )
    else:
        auto = "AutoModelForCausalLM" if kind is ModelKind.TEXT else "AutoModelForImageTextToText"
        reader = "AutoTokenizer" if kind is ModelKind.TEXT else "AutoProcessor"
        code = (
            f"from transformers import {auto}, {reader}\n\n"
            f'model = {auto}.from_pretrained("FOLDER")\n'
            f'{reader.removeprefix("Auto").lower()} = {reader}.from_pretrained("FOLDER")'
        )
    return f"## How to load it\n\n```python\n{code}\n```"


def _limits(final: EvalReceipt | None) -> str:
    told = [
        "* It was judged on the rows above alone; nothing is known about others.",
        "* Biases and the licence are those of the base model and of the data.",
    ]
    if final is not None and final.truncated_share:
        told.append(f"* {final.truncated_share:.0%} of the judged replies were cut off by a limit.")
    return "\n".join(["## Limits", "", *told])


def _recipe(lineage: RunLineage) -> str:
    return f"## Recipe\n\n```yaml\n{lineage.recipe.strip()}\n```"


def _domain(recipe: Mapping[str, object]) -> Domain:
    return Domain(recipe["domain"])


def _is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file() or any(folder.glob("*/adapter_config.json"))


def _shown(path: object) -> str:
    """Return a model's path; of a local folder only its name, since others have another disk."""
    if Path(str(path)).is_absolute():
        return Path(str(path)).name
    return str(path)
