"""Preparation of text prompts: validated, filtered by length, numbered, and published under their
run hash.

The run hash covers everything that determines the rows: schema and code version, parameters and the
content of the inputs; never the paths of inputs or output. Everything else is
`rl_core.data.prepare.job`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from rl_core.data.check.files import describe_env_classes
from rl_core.data.check.trials import RowTrials, row_trials
from rl_core.data.overlap.found import LEFT_OUT, Contamination, Overlaps, overlaps_of
from rl_core.data.overlap.sides import sides_of
from rl_core.data.prepare.chat_template import ChatTemplate
from rl_core.data.prepare.fingerprint import fingerprint
from rl_core.data.prepare.job import Job
from rl_core.data.prepare.lessons import Lessons
from rl_core.data.prepare.prompt_items import ItemMaker, to_json
from rl_core.data.prepare.prompt_lengths import LengthCounter
from rl_core.data.prepare.prompt_sieve import PromptSieve
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.data.store.prompt_rows import PreparedWriter, load_prepared
from rl_core.data.store.publish import Built
from rl_core.data.store.split_cache import (
    SPLITS,
    CachePlan,
    built,
    cache_job,
    plan_of,
    publish_cache,
)
from rl_core.envs.tool_env.offer import Offers, described_tools
from rl_core.envs.trials.settings import VERSION as TRIALS_VERSION
from rl_core.envs.trials.settings import TrialSettings
from rl_core.errors import DataError
from schemas.receipts import CacheReceipt, SourceFile
from schemas.rows.contract import SchemaName
from schemas.rows.prompt_rows import SCHEMA_VERSION, AllowedEnvClasses
from schemas.sections.sft import TaughtTurns
from schemas.sections.training import ContaminationPolicy

__all__ = ["CODE_VERSION", "PreparationSettings", "load_prepared", "plan_cache", "prepare_cache"]

CODE_VERSION = "3"
"""Version of this code, raised whenever the same inputs would be prepared into other rows."""


@dataclass(frozen=True)
class PreparationSettings:
    """Settings of the preparation of text prompts."""

    name: str
    """First part of the prepared folder's name."""
    tokenizer_id: str
    """Identity of the tokenizer in the run hash; it must change when the chat template does."""
    max_prompt_length: int
    cache_root: Path
    memo_dir: Path
    allowed_env_classes: AllowedEnvClasses
    default_env_class: str | None = None
    policy: Literal["fail", "drop"] = "fail"
    """Policy for bad rows: fail, or drop at most `max_bad_fraction` of them; see `apply_policy`."""
    max_bad_fraction: float = 0.0
    prompt_key: str = "prompt"
    schema: SchemaName = SchemaName.PROMPT
    """Contract of the rows: prompts, or conversations with the answers to learn."""
    turns: TaughtTurns = TaughtTurns.ALL
    """Turns that conversations train."""
    needs_answers: bool = True
    """True if every training row must hold an answer, where rows are conversations."""
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    trials: TrialSettings | None = None
    """Settings of the trials of rows with their environments; unset tries none."""
    contamination: Contamination = field(default_factory=Contamination)
    """Benchmarks, and what happens to training rows that repeat them or held-out rows."""

    @property
    def converses(self) -> bool:
        """True if rows are conversations with the answers to learn."""
        return self.schema is SchemaName.CONVERSATION

    def lessons(self, tokenizer: Tokenizer, template: ChatTemplate, split: str) -> Lessons | None:
        """Return the check of the answers of a split; None where rows hold none."""
        if not self.converses:
            return None
        needed = self.needs_answers and split == "train"
        return Lessons(tokenizer, template, self.turns, needed=needed)

    def _tools(self) -> str:
        return "" if self.trials is None else described_tools(self.trials.options)

    def _conversations(self) -> str:
        return f"{self.schema} {self.turns}" + ("" if self.needs_answers else ", asked alone")

    def hash_parts(self) -> dict[str, str]:
        """Return the settings that determine the prepared rows.

        Trials do only where refused rows are dropped; elsewhere they refuse the whole file.
        """
        dropping = self.trials is not None and self.policy == "drop"
        trials = self.trials.describe() if self.trials is not None and dropping else ""
        left_out = self.contamination.hash_parts(self.memo_dir)
        return (
            left_out
            | ({"trials": f"version {TRIALS_VERSION} {trials}"} if dropping else {})
            | ({"rows": self._conversations()} if self.converses else {})
            | ({"tools": tools} if (tools := self._tools()) else {})
            | {
                "schema version": SCHEMA_VERSION,
                "code version": CODE_VERSION,
                "tokenizer": self.tokenizer_id,
                "max_prompt_length": str(self.max_prompt_length),
                "default env_class": self.default_env_class or "",
                "environments": describe_env_classes(self.allowed_env_classes),
                "on_invalid": self.policy,
                "max_bad_fraction": f"{self.max_bad_fraction:g}",
                "prompt key": self.prompt_key,
                "template_kwargs": to_json(dict(self.template_kwargs), "template_kwargs"),
            }
        )


def plan_cache(
    train_paths: Sequence[Path | str],
    eval_paths: Sequence[Path | str],
    settings: PreparationSettings,
    also_held_out: Sequence[Path | str] = (),
) -> CachePlan:
    """Predict whether `prepare_cache` with these arguments would be a cache hit, with the reason;
    loads no tokenizer and writes no rows.

    Raises: DataError when an input is missing.
    """
    return plan_of(_job(train_paths, eval_paths, settings, also_held_out))


def prepare_cache(
    train_paths: Sequence[Path | str],
    eval_paths: Sequence[Path | str],
    settings: PreparationSettings,
    *,
    tokenizer: Callable[[], Tokenizer],
    also_held_out: Sequence[Path | str] = (),
) -> CacheReceipt:
    """Publish `train.parquet` and `eval.parquet` in `<cache_root>/<name>-<hash12>`, if they do not
    exist.

    Args: eval_paths: may be empty. tokenizer: a tokenizer, or a function without arguments that
    loads it, called only on a miss. also_held_out: files of further rows whose questions are not
    trained on; they are not prepared here.

    Raises: DataError when the policy refuses the rows or none is left; StorageError when nothing
    can be written.
    """
    job = _job(train_paths, eval_paths, settings, also_held_out)
    paths: dict[str, Sequence[Path | str]] = {"train": train_paths, "eval": eval_paths}
    # Searched where the cache is a hit, too: the policy is no part of its hash.
    if settings.contamination.policy is ContaminationPolicy.FAIL:
        _overlaps(paths, settings, also_held_out)
    return publish_cache(job, lambda work: _build(work, paths, tokenizer, settings, also_held_out))


def _job(
    train_paths: Sequence[Path | str],
    eval_paths: Sequence[Path | str],
    settings: PreparationSettings,
    also_held_out: Sequence[Path | str],
) -> Job:
    if not train_paths:
        raise DataError("no training files; name at least one")
    files: dict[str, list[SourceFile]] = {}
    for split, paths in zip(SPLITS, (train_paths, eval_paths), strict=True):
        files[split] = [fingerprint(path, settings.memo_dir) for path in paths]
    parts = settings.hash_parts()
    if also_held_out:
        digests = [fingerprint(path, settings.memo_dir).sha256 for path in also_held_out]
        parts["also held out"] = " ".join(sorted(set(digests)))
    return cache_job(settings.name, settings.cache_root, parts, files)


def _build(
    work: Path,
    paths: Mapping[str, Sequence[Path | str]],
    tokenizer: Callable[[], Tokenizer],
    settings: PreparationSettings,
    also_held_out: Sequence[Path | str],
) -> Built:
    # A tokenizer is callable, too.
    is_loaded = hasattr(tokenizer, "apply_chat_template")
    loaded = cast(Tokenizer, tokenizer) if is_loaded else _load(tokenizer)
    lengths_dir = settings.memo_dir.expanduser() / "lengths"
    offer = Offers({} if settings.trials is None else settings.trials.options)
    counter = LengthCounter(loaded, settings.template_kwargs, cache_dir=lengths_dir, offer=offer)
    overlaps = {"train": _overlaps(paths, settings, also_held_out), "eval": Overlaps()}
    dropped: Counter[str] = Counter({"too_long": 0, "invalid": 0})
    with closing(offer), row_trials(settings.trials, settings.default_env_class) as trials:
        counts = {
            split: _build_split(
                work / f"{split}.parquet",
                paths[split],
                counter,
                settings,
                overlaps[split],
                dropped,
                trials,
                settings.lessons(loaded, counter.template, split),
            )
            for split in SPLITS
        }
    for split in SPLITS:
        if paths[split] and not counts[split]:
            limit = (
                f"{dropped['too_long']} have more than max_prompt_length "
                f"{settings.max_prompt_length} tokens"
            )
            repeated = f", {dropped[LEFT_OUT]} repeat held-out rows" if dropped[LEFT_OUT] else ""
            raise DataError(
                f"no {split} row is left: {limit}, {dropped['invalid']} are invalid{repeated}; "
                "nothing was published"
            )
    return built(counts, dropped)


def _overlaps(
    paths: Mapping[str, Sequence[Path | str]],
    settings: PreparationSettings,
    also_held_out: Sequence[Path | str],
) -> Overlaps:
    """Return the training rows that repeat others. Raises: DataError by the policy `fail`."""
    compared = sides_of(
        paths["train"],
        [*paths["eval"], *also_held_out],
        settings.contamination.benchmarks,
        settings.memo_dir,
        prompt_key=settings.prompt_key,
        schema=settings.schema,
    )
    overlaps = overlaps_of(*compared, settings.contamination.policy, settings.memo_dir)
    overlaps.refuse()
    return overlaps


def _load(tokenizer: Callable[[], Tokenizer]) -> Tokenizer:
    return tokenizer()


def _build_split(
    target: Path,
    paths: Sequence[Path | str],
    counter: LengthCounter,
    settings: PreparationSettings,
    overlaps: Overlaps,
    dropped: Counter[str],
    trials: RowTrials | None,
    lessons: Lessons | None,
) -> int:
    from rl_core.data.check.batches import checked_batches

    make = ItemMaker(default_env_class=settings.default_env_class, has_answers=settings.converses)
    sieve = PromptSieve(make, counter, settings.max_prompt_length)
    num_rows = num_invalid = num_left_out = 0
    with PreparedWriter(target) as writer:
        for path in paths:
            for batch in checked_batches(
                path,
                allowed_env_classes=settings.allowed_env_classes,
                default_env_class=settings.default_env_class,
                prompt_key=settings.prompt_key,
                overlaps=overlaps,
                trials=trials,
                schema=settings.schema,
            ):
                if lessons is not None:
                    lessons.refuse(batch, path)
                if batch.rejections and settings.policy == "fail":
                    raise DataError(
                        f"{batch.rejections[0]}\nvalidate the file to see every problem, or drop "
                        "bad rows"
                    )
                num_rows += batch.num_rows
                num_invalid += len(batch.rejected_numbers)
                kept = []
                for number, row in batch.accepted():
                    if not overlaps.leaves_out(path, number):
                        kept.append((number, row))
                num_left_out += batch.num_rows - len(batch.rejected_numbers) - len(kept)
                writer.write(*sieve.of_rows(kept, path))
    dropped["too_long"] += sieve.num_dropped
    dropped["invalid"] += num_invalid
    if num_left_out:
        dropped[LEFT_OUT] += num_left_out
    if num_invalid > settings.max_bad_fraction * num_rows:
        limit = f"more than max_bad_fraction {settings.max_bad_fraction:g} allows"
        raise DataError(
            f"{', '.join(map(str, paths))}: {num_invalid} of {num_rows} rows are refused, {limit}"
        )
    return writer.num_rows
