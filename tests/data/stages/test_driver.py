"""Why a preparation hits or misses, and what it leaves when it cannot finish."""

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_core.data.stages.base import Stage
from rl_core.data.stages.run import load_stage, plan_stage, prepare_stage
from rl_core.errors import DataError, RecipeError, StorageError
from rl_core.runtime.home import Home
from schemas.receipts import PrepReceipt, PrepStatus
from tests.data.stages.conftest import HERE, STAGES, start

Prepare = Callable[..., PrepReceipt]
MakeStage = Callable[..., Stage[Any]]
CHANGED = {
    "mpo": "annotations.zip",
    "text": "sums.jsonl",
    "vision": "images.zip",
    "diffusion": "frames/scene_01.png",
}


@pytest.fixture
def own_raw(raw_dirs: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a stage's raw files that the test may change."""
    return lambda name: Path(shutil.copytree(raw_dirs[name], tmp_path / "own" / name / "raw"))


def receipt_of(folder: Path) -> PrepReceipt:
    (path,) = (folder.parent / ".receipts" / folder.name).glob("????????????.json")
    return PrepReceipt.model_validate_json(path.read_text())


@pytest.mark.parametrize("name", STAGES)
def test_one_changed_byte_of_the_input_is_a_miss_that_names_the_file(
    name: str, own_raw: Callable[[str], Path], stage: MakeStage, home: Home
) -> None:
    raw = own_raw(name)
    before = plan_stage(stage(name, raw=raw), home)
    assert (before.hit, before.explanation) == (False, f"first preparation of {name}")
    receipt = prepare_stage(stage(name, raw=raw), context=HERE, home=home)
    assert receipt.run_hash == before.run_hash
    hit = plan_stage(stage(name, raw=raw), home)
    assert hit.hit and hit.explanation.startswith("cached: nothing changed since 20")

    path = raw / CHANGED[name]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    missed = plan_stage(stage(name, raw=raw), home)
    assert not missed.hit and missed.explanation.endswith(f"{CHANGED[name]} changed")
    if name == "text":
        assert missed.explanation == "data/sums/0/sums.jsonl changed"


def test_a_changed_setting_is_a_miss_that_names_it_and_places_are_no_part(
    prepare: Prepare, stage: MakeStage, home: Home, own_raw: Callable[[str], Path]
) -> None:
    first = prepare("vision")
    plan = plan_stage(stage("vision", "preview_rows=3"), home)
    assert (plan.hit, plan.explanation) == (False, "preview_rows changed from 20 to 3")
    moved = plan_stage(stage("vision", "num_workers=3", raw=own_raw("vision")), home)
    assert moved.hit and moved.run_hash == first.run_hash


def test_a_plan_writes_nothing_beside_the_output(
    stage: MakeStage, home: Home, tmp_path: Path
) -> None:
    plan_stage(stage("vision"), home)
    # The home gets digests to remember, unless the inputs are so fresh that their times prove
    # nothing.
    assert {path.name for path in tmp_path.iterdir()} <= {"home"}


def test_force_builds_again_and_says_so(prepare: Prepare) -> None:
    first, second = prepare("vision"), prepare("vision", force=True)
    assert (second.hit, second.explanation, second.run_hash) == (False, "forced", first.run_hash)


def test_receipt_holds_what_went_in_and_what_came_out(prepare: Prepare) -> None:
    receipt = prepare("vision")
    stored = receipt_of(Path(receipt.output))
    assert stored == receipt and stored.status is PrepStatus.COMPLETED
    assert {Path(source.path).name for source in stored.sources} == {
        "images.zip",
        "mmpr_tiny.parquet",
    }
    assert stored.row_stats == {"total": 24, "kept": 24}
    assert (stored.num_files, len(stored.files_digest), stored.artifact) == (
        27,
        64,
        "omni3/rl/vision/data",
    )
    assert (
        stored.elapsed_sec > 0
        and stored.finished_at is not None
        and stored.process.startswith(f"{os.getpid()}@")
    )


def test_a_failed_build_publishes_nothing_and_its_receipt_says_why(
    own_raw: Callable[[str], Path], prepare: Prepare, tmp_path: Path
) -> None:
    raw = own_raw("vision")
    archive = raw / "images.zip"
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(DataError, match="damaged or truncated zip archive"):
        prepare("vision", raw=raw)
    assert not (tmp_path / "vision").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".build-")]
    stored = receipt_of(tmp_path / "vision")
    assert stored.status is PrepStatus.FAILED
    assert "damaged or truncated" in (stored.error or "") and "Traceback" in (
        stored.traceback or ""
    )


def test_a_failed_rebuild_keeps_what_was_published(
    own_raw: Callable[[str], Path], prepare: Prepare
) -> None:
    raw = own_raw("vision")
    good = prepare("vision", raw=raw)
    archive = raw / "images.zip"
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-100])
    with pytest.raises(DataError):
        prepare("vision", raw=raw)
    archive.write_bytes(whole)
    again = prepare("vision", raw=raw)
    assert again.hit and again.run_hash == good.run_hash


@pytest.mark.parametrize("name", STAGES)
def test_zero_usable_rows_publish_nothing(
    name: str, own_raw: Callable[[str], Path], prepare: Prepare
) -> None:
    raw = own_raw(name)
    if name == "vision":
        with zipfile.ZipFile(raw / "images.zip", "w") as archive:
            archive.writestr("images/other.png", b"not an image")
    elif name == "mpo":
        with zipfile.ZipFile(raw / "annotations.zip", "w") as archive:
            for subset in ("colours", "shapes"):
                archive.writestr(f"annotations/{subset}/pairs.jsonl", '{"question": "?"}\n')
    elif name == "text":
        for file in ("sums.jsonl", "pointing.jsonl"):
            (raw / file).write_text('{"id": 1}\n')
    else:
        (raw / "prompts.jsonl").write_text('{"prompt_embeds": [1]}\n')
    with pytest.raises(
        DataError, match=r"none is left and nothing is published|so nothing is published"
    ):
        prepare(name, "on_invalid=drop", "max_bad_fraction=1", raw=raw)
    output = raw.parents[2] / name
    assert not [
        path
        for path in output.rglob("*")
        if path.is_file() and ".receipts" not in path.parts and "lock" not in path.name
    ]


def test_unknown_keys_are_refused_with_the_list_of_known_ones(
    raw_dirs: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(RecipeError) as caught:
        load_stage(
            "vision", ["preview_row=3"], input_dir=raw_dirs["vision"], output_dir=tmp_path / "out"
        )
    message = str(caught.value)
    assert "preview_row: unknown key (did you mean 'preview_rows'?)" in message
    assert "known keys: archive, check_images, dataset_name, input_dir" in message


def test_unknown_stage_names_the_known_ones() -> None:
    with pytest.raises(RecipeError, match=r"unknown stage 'visoin' \(did you mean 'vision'\?\)"):
        load_stage("visoin")


def test_an_output_with_files_of_somebody_else_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "thesis.tex").write_text("years of work")
    with pytest.raises(
        StorageError, match="holds files that no preparation wrote; name an empty or new folder"
    ):
        prepare("vision")
    assert (tmp_path / "vision" / "thesis.tex").read_text() == "years of work"


def test_input_and_output_inside_each_other_are_refused(
    stage: MakeStage, raw_dirs: dict[str, Path]
) -> None:
    for output in (raw_dirs["vision"], raw_dirs["vision"] / "out", raw_dirs["vision"].parent):
        with pytest.raises(DataError, match="lie inside each other"):
            stage("vision", output=output)


def allowed(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(
    shutil.which("unshare") is None or not allowed("unshare", "-rm", "true"),
    reason="no private mounts here",
)


def on_own_disk(mount: Path, options: str) -> tuple[str, ...]:
    """A command prefix that runs the rest with a small disk of its own at `mount`, which vanishes
    with it."""
    mount.mkdir(exist_ok=True)
    script = f'mount -t tmpfs -o {options} tmpfs {mount} && exec "$@"'
    return ("unshare", "-rm", "sh", "-c", script, "sh")


@needs_namespaces
def test_a_full_disk_says_so_and_publishes_nothing(
    raw_dirs: dict[str, Path], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    process = start(
        "vision",
        raw_dirs["vision"],
        disk / "out",
        tmp_path / "home",
        prefix=on_own_disk(disk, "size=64k"),
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "StorageError: cannot write" in errors and "the disk is full: free some space" in errors


@needs_namespaces
def test_a_read_only_disk_says_so(raw_dirs: dict[str, Path], tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    process = start(
        "vision",
        raw_dirs["vision"],
        disk / "out",
        tmp_path / "home",
        prefix=on_own_disk(disk, "ro"),
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "StorageError: cannot write" in errors and "the disk is read-only" in errors


@needs_namespaces
def test_a_hit_on_a_read_only_disk_needs_no_writing(
    raw_dirs: dict[str, Path], tmp_path: Path, prepare: Prepare
) -> None:
    built = prepare("vision", output=tmp_path / "disk" / "out")
    bind = (
        f"mount --bind {tmp_path / 'disk'} {tmp_path / 'disk'} && mount -o remount,bind,ro "
        f"{tmp_path / 'disk'}"
    )
    prefix = ("unshare", "-rm", "sh", "-c", f'{bind} && exec "$@"', "sh")
    process = start(
        "vision", raw_dirs["vision"], tmp_path / "disk" / "out", tmp_path / "home2", prefix=prefix
    )
    output, errors = process.communicate(timeout=60)
    assert output.split() == ["hit", built.run_hash], errors


def test_a_file_size_limit_ends_the_build_cleanly(
    raw_dirs: dict[str, Path], tmp_path: Path
) -> None:
    prefix = ("sh", "-c", 'ulimit -f 1 && exec "$@"', "sh")
    process = start(
        "vision", raw_dirs["vision"], tmp_path / "out", tmp_path / "home", prefix=prefix
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0 and "StorageError: cannot write" in errors
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".build-*"))


def test_the_summary_names_no_time_and_no_place(prepare: Prepare, tmp_path: Path) -> None:
    root = Path(prepare("vision").output)
    summary = json.loads((root / "prepare_mmpr_tiny_for_vision_rl_summary.json").read_text())
    assert summary == {
        "bad_images": {},
        "dataset_name": "mmpr_tiny",
        "num_images": 24,
        "row_stats": {"kept": 24, "total": 24},
    }
