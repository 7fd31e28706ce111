"""The stage `vision`: MMPR-Tiny as a cache for vision RL.

`images.zip` is unpacked to `MMPR-Tiny/images/`, `mmpr_tiny.parquet` is copied unchanged, and every
row is checked by the function that training reads it with (`rl_core.data.order.vision_dataset`).
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from rl_core.data.order.vision_dataset import (
    IMAGES,
    PARQUET,
    SENTINEL,
    SUMMARY,
    RowRefused,
    VisionRow,
    judged_rows,
    usable_rows,
)
from rl_core.data.read.archives import ArchiveLimits, Parts, extract, list_members
from rl_core.data.read.unpack import ImageCheck
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
from rl_core.data.store.publish import Built

PREVIEW = "mmpr_tiny_preview.jsonl"
ARCHIVE = "images.zip"


class VisionConfig(StageConfig):
    """Settings of the stage `vision`."""

    dataset_name: str = "mmpr_tiny"
    archive: ArchiveLimits = Field(default_factory=ArchiveLimits)
    """Bounds on `images.zip`."""
    check_images: ImageCheck = ImageCheck.STRUCTURE
    """Check of each image."""
    preview_rows: int = Field(default=20, ge=0)
    """Number of good rows in the preview."""


@stages.register("vision")
class Vision(Stage[VisionConfig]):
    """MMPR-Tiny: `images.zip` and `mmpr_tiny.parquet`."""

    Config = VisionConfig
    code_version = "1"
    artifact = "omni3/rl/vision/data"
    sentinel = SENTINEL
    required = (ARCHIVE, PARQUET)
    env_name = "OMNI3_MMPR_TINY_RAW"

    def inputs(self) -> Mapping[str, Path]:
        return {name: self.input_dir / name for name in self.required}

    def build(self, work: Path, context: Context) -> Built:
        archive = self.input_dir / ARCHIVE
        members = list_members(archive, self.config.archive, _place)
        images = extract(
            archive,
            work,
            members,
            check=self.config.check_images,
            num_workers=self.num_workers,
            run=context.runner(sum(member.num_bytes for member in members)),
            advance=context.advance("unpack images", len(members)),
        )
        shutil.copyfile(self.input_dir / PARQUET, work / PARQUET)
        tally, preview = Tally(), []
        for number, found in judged_rows(work, images.bad_images):
            if isinstance(found, RowRefused):
                tally.refuse(found.reason, f"{PARQUET}:{number}", str(found))
                continue
            tally.keep()
            if len(preview) < self.config.preview_rows:
                preview.append(_shown(found))
        tally.apply(self.config, self.input_dir / PARQUET)
        write_preview(work / PREVIEW, preview)
        summary = {"dataset_name": self.config.dataset_name, "row_stats": tally.counts()}
        write_json(
            work / SUMMARY,
            {**summary, "num_images": len(images.digests), "bad_images": images.bad_images},
        )
        return Built(tally.counts(), images.digests)

    def check(self, work: Path, built: Built) -> None:
        refuse_disagreement(work, sum(1 for _ in usable_rows(work)), built)


def _shown(row: VisionRow) -> dict[str, object]:
    image = row.image if isinstance(row.image, str) else f"<{len(row.image)} bytes>"
    return {
        "row": row.row,
        "images": [image],
        "question": row.question,
        "answer": row.answer,
        "task_name": "mmpr_tiny",
    }


def _place(parts: Parts) -> str | None:
    """Map `[…/]images/<rest>` to `MMPR-Tiny/images/<rest>`; an archive without such a folder is
    placed there as a whole."""
    if parts[0] == "__MACOSX" or parts[-1].startswith("."):
        return None
    below = parts[parts.index("images") + 1 :] if "images" in parts[:-1] else parts
    return "/".join((IMAGES, *below))
