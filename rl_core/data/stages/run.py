"""Running of a stage: its settings from YAML, its raw files, a plan, and the result.

The command line, the flow and direct calls from Python all use this module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rl_core.data.prepare.job import plan_job, run_job
from rl_core.data.read.raw_dir import ensure_raw_dir, recorded_revision
from rl_core.data.stages import stages
from rl_core.data.stages.base import Context, Stage, StageConfig
from rl_core.data.stages.inputs import fingerprint_all
from rl_core.data.store.lock import Note
from rl_core.data.store.publish import refuse_strangers
from rl_core.errors import RecipeError
from rl_core.runtime.home import Home
from rl_core.runtime.registry import describe_validation_error, nearest
from rl_core.runtime.settings_files import DEPLOYMENTS, merge_overrides, read_yaml, resolved
from rl_core.runtime.user_paths import no_file, user_path
from schemas.receipts import PrepReceipt, SourceFile


@dataclass(frozen=True)
class StagePlan:
    """Prediction of what preparing a stage would do, with the reason."""

    output: Path
    artifact: str
    artifact_path: Path
    hit: bool
    explanation: str
    run_hash: str | None = None
    """Run hash; None while raw files are missing."""
    sources: list[SourceFile] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)


def stage_names() -> list[str]:
    """Return the names of the settings that ship with the project, one file per stage."""
    return sorted(path.stem for path in (DEPLOYMENTS / "prep").glob("*.yaml"))


def load_stage(
    name_or_path: str,
    overrides: Sequence[str] = (),
    *,
    input_dir: Path | str | None = None,
    output_dir: Path | str | None = None,
) -> Stage[Any]:
    """Load a stage with its settings: the shipped file or a path, with folders and dotted
    assignments on top.

    Raises: RecipeError naming file, key, value and the known keys.
    """
    path = user_path(name_or_path)
    if name_or_path in stage_names():
        path = DEPLOYMENTS / "prep" / f"{name_or_path}.yaml"
    if path.suffix.lower() not in {".yaml", ".yml"}:
        raise RecipeError(
            f"unknown stage {name_or_path!r}{nearest(name_or_path, stage_names())}, or give a "
            ".yaml path"
        )
    if not path.is_file():
        raise RecipeError(f"stage file {path}: {no_file(path)}")
    values = resolved(merge_overrides(read_yaml(path), overrides, path), path)
    values |= {"input_dir": str(input_dir)} if input_dir is not None else {}
    values |= {"output_dir": str(output_dir)} if output_dir is not None else {}
    target = values.pop("target", None)
    if target is None:
        if values.get("stage") is None:
            raise RecipeError(
                f"{path.name}: names no stage; set stage to one of {', '.join(stage_names())}, or "
                "target to a class of your own"
            )
        cls: Any = stages.get(str(values["stage"]))
    elif values.get("stage") is not None:
        raise RecipeError(
            f"{path.name}: give either stage or target, not both {values['stage']!r} and "
            f"{target!r}; set the other to null"
        )
    else:
        try:
            cls = _own_stage(str(target))
        except RecipeError as error:
            raise RecipeError(f"{path.name}: {error}") from error
        values["stage"] = cls.__name__.lower().replace("_", "-")
    try:
        config = cls.Config(**values)
    except ValidationError as error:
        known = f"known keys: {', '.join(sorted(cls.Config.model_fields))}"
        problems = describe_validation_error(error, "", cls.Config).splitlines()
        raise RecipeError(
            "\n".join([*(f"{path.name}: {line}" for line in problems), known])
        ) from error
    loaded = cls(config)
    loaded.target = target
    return loaded


def _own_stage(target: str) -> type[Stage[Any]]:
    """Return a stage's class from outside the project. Raises: RecipeError naming what it lacks."""
    cls = stages.imported(target, "")
    if not issubclass(cls, Stage):
        raise RecipeError(f"target: {target} does not derive from rl_core.data.stages.base:Stage")
    settings = getattr(cls, "Config", None)
    lacking = sorted(cls.__abstractmethods__)
    lacking += [name for name in ("code_version", "artifact") if not hasattr(cls, name)]
    if not (isinstance(settings, type) and issubclass(settings, StageConfig)):
        lacking.append("Config, a StageConfig")
    if lacking:
        raise RecipeError(
            f"target: {target} has no {', no '.join(lacking)}; docs/extending.md shows a stage"
        )
    return cls


def plan_stage(stage: Stage[Any], home: Home | None = None) -> StagePlan:
    """Predict whether `prepare_stage` would be a hit, with the reason; fetches and writes nothing
    but digests of the inputs."""
    place = (stage.output, stage.artifact, stage.artifact_path)
    refuse_strangers(stage.output, stage.sentinel)
    settings = stage.config.model_dump(mode="json")
    if stage.target is not None:
        settings = {"target": stage.target, **settings}
    if missing := stage.missing():
        fetched = f"{stage.config.source_uri} would be fetched into {stage.input_dir} first"
        if stage.config.source_uri:
            advice = fetched
        else:
            advice = "nothing says where to fetch them from (source_uri is not set)"
        return StagePlan(
            *place, False, f"missing {', '.join(missing)}: {advice}", settings=settings
        )
    sources = fingerprint_all(stage.inputs(), _memo_dir(home))
    job = stage.job(sources, recorded_revision(stage.input_dir))
    plan = plan_job(job)
    return StagePlan(*place, plan.hit, plan.explanation, job.run_hash, list(job.sources), settings)


def prepare_stage(
    stage: Stage[Any],
    *,
    context: Context | None = None,
    force: bool = False,
    note: Note | None = None,
    home: Home | None = None,
) -> PrepReceipt:
    """Publish the cache of a stage: reuse it if nothing changed, else fetch the inputs and build
    it.

    Args: force: build again even if nothing changed. note: receives a message about what is being
    fetched or waited for.
    Raises: DataError, StorageError; the receipt next to the output records the error too.
    """
    context = context or Context()
    raw = ensure_raw_dir(
        stage.input_dir, stage.config.source_uri, stage.required, env_name=stage.env_name, note=note
    )
    inputs = stage.inputs()
    sources = fingerprint_all(inputs, _memo_dir(home), context.advance("read inputs", len(inputs)))
    job = stage.job(sources, raw.revision)
    return run_job(
        job, lambda work: stage.build(work, context), check=stage.check, force=force, note=note
    )[1]


def _memo_dir(home: Home | None) -> Path:
    return (home or Home.default()).data / "memo"
