"""The stage `text`: a blend of response rows as train and val JSONL, for text RL.

All columns of a row are kept. Placeholder rows are resolved against their tables. Only the prompt
decides if a row is held out, so that equal prompts never end up on both sides. Every input file
becomes one shard per split, and the manifest lists every shard.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import Field

from rl_core.data.stages import stages
from rl_core.data.stages.base import (
    Context,
    Stage,
    StageConfig,
    Tally,
    refuse_disagreement,
    write_json,
    write_preview,
)
from rl_core.data.stages.blend import Part, Split, entry_files, read_blend
from rl_core.data.stages.placeholders import UNRESOLVED, TableConfig, fetch_rows
from rl_core.data.stages.shards import ShardJob, Written, placeholder_rows, read_shard
from rl_core.data.store.publish import Built
from rl_core.errors import DataError
from rl_core.runtime.settings_files import DEPLOYMENTS

MANIFEST, PREVIEW = "manifest.json", "preview.jsonl"


class TextConfig(StageConfig):
    """Settings of the stage `text`."""

    dataset_name: str = "text_rl_blend"
    blend: str = "data_blend_raw.json"
    """The blend file, relative to `input_dir`. If what `source_uri` names has none, the one that
    ships beside the stage's settings describes it."""
    val_fraction: float = Field(default=0.01, ge=0, lt=1)
    """Share of prompts that is held out, if the blend does not name held-out datasets."""
    seed: int = 0
    """Seed of the split; another seed holds out other prompts."""
    placeholder_tables: dict[str, TableConfig] = Field(default_factory=dict)
    """Location of each placeholder table by its name in the rows' `dataset`."""
    max_unresolved_fraction: float = Field(default=0.0, ge=0, le=1)
    """Largest share of placeholder rows that cannot be resolved; beyond it the preparation
    fails."""
    preview_rows: int = Field(default=2, ge=0)
    """Number of rows of each input file in the preview."""


@dataclass(frozen=True)
class _Input:
    label: str
    file: Path
    part: Part


@stages.register("text")
class Text(Stage[TextConfig]):
    """A blend file, and the datasets and tables that it names."""

    Config = TextConfig
    code_version = "1"
    artifact = "omni3/rl/text/data"

    def __init__(self, config: TextConfig) -> None:
        super().__init__(config)
        shipped = DEPLOYMENTS / "prep" / config.blend
        self._shipped = shipped if config.source_uri and shipped.is_file() else None
        self.required = () if self._shipped else (config.blend,)

    @property
    def artifact_path(self) -> Path:
        return self.output / MANIFEST

    def inputs(self) -> Mapping[str, Path]:
        tables = {}
        for name, files in self._tables.items():
            for index, file in enumerate(files):
                tables[f"table {name}/{index}"] = file
        return {
            self.config.blend: self._blend,
            **{one.label: one.file for one in self._inputs},
            **tables,
        }

    def build(self, work: Path, context: Context) -> Built:
        found = self._resolve_placeholders(context)
        held_out: list[bytes] = []
        written: dict[str, Written] = {}
        advance = context.advance("write rows", len(self._inputs))
        run = context.runner(sum(one.file.stat().st_size for one in self._inputs))
        # Held-out parts first: what they ask must not be trained on.
        for split in (Split.VAL, None, Split.TRAIN):
            jobs = [self._job(work, index, one, found, held_out) for index, one in self._of(split)]
            for job, results in zip(
                jobs, run("rl_core.data.stages.shards:write_shard", jobs, advance), strict=True
            ):
                written[job.label] = results
                held_out = sorted({*held_out, *results.val_keys})
        ordered = [written[one.label] for one in self._inputs]
        tally = Tally()
        for one in ordered:
            tally.add(one.tally)
        self._refuse_unresolved(tally, sum(one.num_placeholders for one in ordered))
        tally.apply(self.config, self._blend)
        shards = [shard for one in ordered for shard in one.shards]
        counts = {split.value: 0 for split in Split}
        for shard in shards:
            counts[shard["split"]] += shard["num_rows"]
        if not counts[Split.TRAIN]:
            raise DataError(
                f"{self._blend}: no training row is left; lower val_fraction, or raise a weight"
            )
        write_json(work / MANIFEST, self._manifest(tally, counts, shards, ordered))
        write_preview(work / PREVIEW, [row for one in ordered for row in one.preview])
        return Built(
            {**tally.counts(), **counts}, {shard["path"]: shard["sha256"] for shard in shards}
        )

    def check(self, work: Path, built: Built) -> None:
        files = sorted(path for split in Split for path in (work / split).glob("*.jsonl"))
        rows = sum(1 for file in files for _ in read_shard(file))
        if rows != built.counts[Split.TRAIN] + built.counts[Split.VAL]:
            refuse_disagreement(work, rows, built)

    @property
    def _blend(self) -> Path:
        own = self.input_dir / self.config.blend
        if self._shipped and not own.is_file():
            return self._shipped
        return own

    @property
    def _folder(self) -> Path:
        """Folder to which the paths in the blend are relative."""
        if self._blend == self._shipped:
            return self.input_dir
        return self._blend.parent

    @cached_property
    def _inputs(self) -> list[_Input]:
        found = []
        for part in read_blend(self._blend):
            for index, file in enumerate(entry_files(part.entry, self._folder, download=True)):
                found.append(
                    _Input(
                        f"{part.split or 'data'}/{part.entry.name}/{index}/{file.name}", file, part
                    )
                )
        labels = [one.label for one in found]
        if twice := {label for label in labels if labels.count(label) > 1}:
            raise DataError(
                f"{self._blend}: two datasets are called {sorted(twice)[0].split('/')[1]!r}; "
                "rename one"
            )
        return found

    @cached_property
    def _tables(self) -> dict[str, list[Path]]:
        """Files of the tables that some row refers to; others are not fetched."""
        tables: dict[str, list[Path]] = {}
        for name in sorted(self._pointers):
            if name in self.config.placeholder_tables:
                tables[name] = self.config.placeholder_tables[name].files(
                    self._folder, download=True
                )
        return tables

    @cached_property
    def _pointers(self) -> dict[str, set[int]]:
        """Rows that placeholders name, by table."""
        wanted: dict[str, set[int]] = defaultdict(set)
        for one in self._inputs:
            for name, number in placeholder_rows(one.file):
                wanted[name].add(number)
        return dict(wanted)

    def _resolve_placeholders(self, context: Context) -> dict[str, dict[int, tuple[str, str]]]:
        advance, found = context.advance("read tables", len(self._tables)), {}
        for name, files in self._tables.items():
            found[name] = fetch_rows(
                files, self.config.placeholder_tables[name], self._pointers[name]
            )
            advance(1)
        return found

    def _of(self, split: Split | None) -> Iterable[tuple[int, _Input]]:
        return ((index, one) for index, one in enumerate(self._inputs) if one.part.split is split)

    def _job(
        self,
        work: Path,
        index: int,
        one: _Input,
        found: Mapping[str, Mapping[int, tuple[str, str]]],
        held_out: list[bytes],
    ) -> ShardJob:
        return ShardJob(
            label=one.label,
            file=str(one.file.resolve()),
            work=str(work),
            index=index,
            split=one.part.split,
            weight=one.part.entry.weight,
            text_field=one.part.entry.text_field,
            val_fraction=self.config.val_fraction,
            seed=self.config.seed,
            tables=found,
            held_out=held_out,
            preview_rows=self.config.preview_rows,
        )

    def _refuse_unresolved(self, tally: Tally, num_placeholders: int) -> None:
        unresolved = tally.reasons[UNRESOLVED]
        if unresolved > self.config.max_unresolved_fraction * num_placeholders:
            unknown = sorted(self._pointers.keys() - self.config.placeholder_tables.keys())
            tables = f"; no placeholder_tables entry for {', '.join(unknown)}" if unknown else ""
            listed = "".join(f"\n  {example}" for example in tally.examples)
            raise DataError(
                f"{self._blend}: {unresolved} of {num_placeholders} placeholder rows lead "
                "nowhere, more than max_unresolved_fraction "
                f"{self.config.max_unresolved_fraction:g} allows{tables}{listed}"
            )

    def _manifest(
        self,
        tally: Tally,
        counts: Mapping[str, int],
        shards: list[dict[str, object]],
        ordered: list[Written],
    ) -> dict[str, object]:
        paths = {}
        for split in Split:
            paths[split.value] = [shard["path"] for shard in shards if shard["split"] == split]
        return {
            "dataset_name": self.config.dataset_name,
            **paths,
            "num_rows": dict(counts),
            "row_stats": tally.counts(),
            "datasets": {
                one.label: {**one.tally.counts(), "weight": source.part.entry.weight}
                for one, source in zip(ordered, self._inputs, strict=True)
            },
            "shards": shards,
        }
