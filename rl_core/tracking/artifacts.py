"""Prepared data in MLflow: versions of `omni3/rl/<stage>/data`, each with its inputs.

A version is a run of the experiment `rl-prepare`: its inputs are the source files, its artifacts
(below the artifact's own name) the receipt, the metadata and the small files of the result. The
rows stay in their published folder. `art://omni3/rl/vision/data@latest` names the newest version,
`@v3` the third, `@<hash>` the newest of a run hash.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities import Run

from rl_core.data.stages.published import split_files
from rl_core.data.store.publish import open_published
from rl_core.errors import DataError
from rl_core.tracking.database import one_at_a_time, tracking_client
from rl_core.tracking.keys import filter_value
from rl_core.tracking.run import TrackingRun, ensure_experiment
from schemas.receipts import PrepReceipt

EXPERIMENT = "rl-prepare"
SCHEME = "art://"
LATEST = "latest"
MAX_LOGGED_SOURCES = 50
MAX_LOGGED_BYTES = 4 * 2**20
_HASH_CHARS = 8


@dataclass(frozen=True)
class PreparedArtifact:
    """A version of prepared data."""

    name: str
    version: int
    path: Path
    """File or folder that the name refers to."""
    run_hash: str
    run_id: str


@dataclass(frozen=True)
class Reference:
    """A reference `art://<name>[@latest | @v<number> | @<first characters of the run hash>]`."""

    name: str
    wanted: str

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Parse a reference.

        Raises: DataError when the text is not such a reference.
        """
        name, _, wanted = text.removeprefix(SCHEME).partition("@")
        if not text.startswith(SCHEME) or not name or name.startswith("/"):
            raise DataError(
                f"{text!r}: expected art://<name>@latest, such as art://omni3/rl/vision/data@latest"
            )
        return cls(name, wanted or LATEST)

    def fits(self, artifact: PreparedArtifact) -> bool:
        """Return True if an artifact of this name is the requested version."""
        if self.wanted == LATEST or self.wanted == f"v{artifact.version}":
            return True
        return len(self.wanted) >= _HASH_CHARS and artifact.run_hash.startswith(self.wanted)


def register_prepared(
    tracking_uri: str,
    receipt: PrepReceipt,
    *,
    tags: Mapping[str, str] | None = None,
    artifact_location: Path | None = None,
) -> PreparedArtifact:
    """Record a finished preparation as the next version of its artifact; a repeat of the newest
    version makes no new one."""
    with one_at_a_time(tracking_uri):  # two at once would take the same number
        return _register(tracking_uri, receipt, tags or {}, artifact_location)


def _register(
    tracking_uri: str, receipt: PrepReceipt, tags: Mapping[str, str], artifact_location: Path | None
) -> PreparedArtifact:
    assert receipt.artifact is not None and receipt.artifact_path is not None
    client = tracking_client(tracking_uri)
    known = versions(tracking_uri, receipt.artifact)
    newest = known[0] if known else None
    if newest and (newest.run_hash, str(newest.path)) == (receipt.run_hash, receipt.artifact_path):
        return newest
    ensure_experiment(client, EXPERIMENT, artifact_location)
    version = newest.version + 1 if newest else 1
    run = TrackingRun.open(tracking_uri, EXPERIMENT, f"{receipt.artifact} v{version}", tags=tags)
    run.log_params(
        {
            "stage": receipt.name,
            "source_uri": receipt.source_uri or "",
            "revision": receipt.revision or "",
        }
    )
    run.log_params(
        {
            f"input.{key}": value
            for key, value in list(receipt.hash_parts.items())[:MAX_LOGGED_SOURCES]
        }
    )
    for source in receipt.sources[:MAX_LOGGED_SOURCES]:
        name = "/".join(Path(source.path).parts[-2:])
        num_rows = receipt.row_stats.get("total", 0)
        run.log_dataset(name, source.path, source.sha256, context="preparation", num_rows=num_rows)
    run.log_metrics(
        {
            "elapsed_sec": receipt.elapsed_sec,
            **{f"rows/{k}": v for k, v in receipt.row_stats.items()},
        },
        0,
    )
    run.log_text(receipt.model_dump_json(indent=2), f"{receipt.artifact}/receipt.json")
    run.log_dict(_metadata(receipt), f"{receipt.artifact}/metadata.json")
    for file in _small_files(Path(receipt.output)):
        run.log_artifact(file, receipt.artifact)
    # The tags that make it a version come last: a run that was cut short is none.
    run.set_tags({"artifact.path": receipt.artifact_path, "artifact.output": receipt.output})
    run.set_tags({"artifact.run_hash": receipt.run_hash, "artifact.version": version})
    run.set_tags({"artifact.name": receipt.artifact})
    run.finish()
    return PreparedArtifact(
        receipt.artifact, version, Path(receipt.artifact_path), receipt.run_hash, run.run_id
    )


def versions(tracking_uri: str, name: str) -> list[PreparedArtifact]:
    """Return all versions of an artifact, the newest first."""
    client = tracking_client(tracking_uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return []
    if (quoted := filter_value(name)) is None:
        return []
    wanted = f"tags.`artifact.name` = {quoted}"
    runs = client.search_runs(
        [experiment.experiment_id], wanted, order_by=["attributes.start_time DESC"]
    )
    return sorted((_artifact(run) for run in runs), key=lambda one: one.version, reverse=True)


def resolve(tracking_uri: str, reference: str) -> PreparedArtifact:
    """Return the artifact that a reference names, with its data still in place.

    Raises: DataError when there is no such version, or its folder is gone or holds another
    preparation by now.
    """
    wanted = Reference.parse(reference)
    known = versions(tracking_uri, wanted.name)
    found = next((one for one in known if wanted.fits(one)), None)
    if found is None:
        listed = ", ".join(f"v{one.version} ({one.run_hash[:12]})" for one in known) or "none"
        raise DataError(
            f"{reference}: no such version; there are {listed}. Prepare it with rl-train prep"
        )
    client = tracking_client(tracking_uri)
    output = Path(client.get_run(found.run_id).data.tags["artifact.output"])
    sentinel = next(
        (name for name in (".mmpr_ready", ".ready") if (output / name).is_file()), ".ready"
    )
    try:
        open_published(output, sentinel, found.run_hash)
    except DataError as error:
        raise DataError(f"{reference} (v{found.version}): {error}") from error
    return found


def with_artifacts(values: Mapping[str, Any], tracking_uri: str) -> dict[str, Any]:
    """Return a recipe's values with every `art://` reference to rows replaced by the files it
    refers to; of a benchmark these are its held-out rows."""
    data = dict(values["data"])
    for split in ("train", "eval"):
        data[split] = _located(data.get(split) or [], split, tracking_uri)
    found = {**values, "data": data}
    evaluation = values.get("evaluation") or {}
    if evaluation.get("sets"):
        sets = {}
        for name, one in evaluation["sets"].items():
            sets[name] = {**one, "data": _located(one["data"], "eval", tracking_uri)}
        found["evaluation"] = {**evaluation, "sets": sets}
    validation = values.get("validation") or {}
    if benchmarks := validation.get("benchmarks"):
        located = _located(benchmarks, "eval", tracking_uri)
        found["validation"] = {**validation, "benchmarks": located}
    return found


def _located(entries: Sequence[object], split: str, tracking_uri: str) -> list[object]:
    located: list[object] = []
    for entry in entries:
        if isinstance(entry, str) and entry.startswith(SCHEME):
            located += map(str, split_files(resolve(tracking_uri, entry).path, split))
        elif isinstance(entry, Mapping) and str(entry.get("path")).startswith(SCHEME):
            found = split_files(resolve(tracking_uri, entry["path"]).path, split)
            located += [{**entry, "path": str(file)} for file in found]
        else:
            located.append(entry)
    return located


def _artifact(run: Run) -> PreparedArtifact:
    tags = run.data.tags
    return PreparedArtifact(
        name=tags["artifact.name"],
        version=int(tags["artifact.version"]),
        path=Path(tags["artifact.path"]),
        run_hash=tags["artifact.run_hash"],
        run_id=run.info.run_id,
    )


def _metadata(receipt: PrepReceipt) -> dict[str, object]:
    return {
        "elapsed_sec": receipt.elapsed_sec,
        "run_hash": receipt.run_hash,
        "row_stats": receipt.row_stats,
        "path": receipt.artifact_path,
        "files_digest": receipt.files_digest,
        "source_uri": receipt.source_uri,
        "revision": receipt.revision,
        "sources": [
            {"path": s.path, "num_bytes": s.num_bytes, "sha256": s.sha256} for s in receipt.sources
        ],
    }


def _small_files(output: Path) -> list[Path]:
    """Return the small files at the top of the result: previews, summaries and manifests."""
    files = (path for path in sorted(output.iterdir()) if path.suffix in (".json", ".jsonl"))
    return [path for path in files if path.is_file() and path.stat().st_size <= MAX_LOGGED_BYTES]
