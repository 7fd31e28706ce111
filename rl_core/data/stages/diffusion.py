"""The stage `diffusion`: prompt files and their condition images, checked, resized and stored by
content.

Each prompt becomes a row of `prompts.jsonl` (held-out ones of `eval_prompts.jsonl`) with `prompt`,
`prompt_id`, `metadata` and `media_refs`; a condition image becomes `images/<first
two>/<sha256>.png`, once for all prompts that show it. Remote references stay unchanged.
"""

import hashlib
import io
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import Field

from rl_core.data.prepare.workers import Advance
from rl_core.data.read.readers import raw_values
from rl_core.data.read.remote import base_of
from rl_core.data.stages import stages
from rl_core.data.stages.base import (
    Context,
    Stage,
    StageConfig,
    Tally,
    refuse_disagreement,
    slug,
    write_json,
    write_preview,
)
from rl_core.data.store.publish import Built
from rl_core.errors import DataError
from schemas.rows.media_checks import MediaLimits, is_remote, load_image, local_path
from schemas.rows.media_prompts import MediaPrompt, media_contract, media_prompt
from schemas.rows.pixels import is_read_specially

PROMPTS, EVAL_PROMPTS = "prompts.jsonl", "eval_prompts.jsonl"
MANIFEST, PREVIEW = "manifest.json", "preview.jsonl"


class DiffusionConfig(StageConfig):
    """Settings of the stage `diffusion`."""

    dataset_name: str = "diffusion_prompts"
    prompts: list[str] = Field(default=["prompts.jsonl"], min_length=1)
    """Prompt files, relative to `input_dir`."""
    eval_prompts: list[str] = Field(default=[])
    """Held-out prompt files."""
    prompt_key: str = "prompt"
    """Key of the prompt in the files."""
    max_image_side: int = Field(default=1024, ge=16)
    """Longest side in pixels to which larger condition images are scaled down, keeping their aspect
    ratio."""
    side_multiple: int = Field(default=1, ge=1)
    """Divisor of width and height (models want 8 or 16); the surplus is cropped at the edges."""
    max_image_bytes: int = Field(default=64 * 2**20, ge=1)
    """Largest size of an image file in bytes."""
    max_image_pixels: int = Field(default=64_000_000, ge=1)
    """Largest number of pixels; an image whose header declares more is refused before it is
    decoded."""
    preview_rows: int = Field(default=5, ge=0)
    """Number of prompts in the preview."""


@dataclass(frozen=True)
class ImageJob:
    """Job of one worker: condition images to check, resize and store."""

    work: str
    paths: list[str]
    max_side: int
    multiple: int
    limits: MediaLimits


@stages.register("diffusion")
class Diffusion(Stage[DiffusionConfig]):
    """Prompt files in any supported format, with condition images next to them."""

    Config = DiffusionConfig
    code_version = "1"
    artifact = "omni3/rl/diffusion/data"

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__(config)
        self.required = (*config.prompts, *config.eval_prompts)

    @property
    def artifact_path(self) -> Path:
        return self.output / PROMPTS

    def inputs(self) -> Mapping[str, Path]:
        files = {name: self.input_dir / name for name in self.required}
        present = [path for path in self._images if path.is_file()]
        return files | {f"image {self._label(i, path)}": path for i, path in enumerate(present)}

    def parameters(self) -> dict[str, str]:
        import PIL

        # Another version of the imaging library may scale or write a pixel otherwise.
        parameters = super().parameters() | {"Pillow": PIL.__version__}
        if any(is_read_specially(path) for path in self._images if path.is_file()):
            parameters["pixels"] = "transparency on white, 16 bits scaled"
        return parameters

    def build(self, work: Path, context: Context) -> Built:
        stored = self._store_images(work, context)
        tally, counts, preview = Tally(), {}, []
        for target, names in (
            (PROMPTS, self.config.prompts),
            (EVAL_PROMPTS, self.config.eval_prompts),
        ):
            if not names:
                continue
            seen: set[str] = set()
            with (work / target).open("x", encoding="utf-8", newline="\n") as out:
                counts[target] = 0
                for place, found in self._prompts(names, tally):
                    row = self._row(found, place, stored, seen, tally)
                    if row is None:
                        continue
                    out.write(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n")
                    counts[target] += 1
                    if len(preview) < self.config.preview_rows:
                        preview.append(row)
            if not counts[target]:
                listed = "".join(f"\n  {example}" for example in tally.examples)
                raise DataError(
                    f"{', '.join(names)}: no prompt can be used, so nothing is published{listed}"
                )
        tally.apply(self.config, self.input_dir)
        write_preview(work / PREVIEW, preview)
        images = sorted({name for name, problem in stored.values() if problem is None})
        manifest = {
            "dataset_name": self.config.dataset_name,
            "row_stats": tally.counts(),
            "num_images": len(images),
        }
        write_json(work / MANIFEST, {**manifest, "files": counts})
        return Built(tally.counts(), {name: Path(name).stem for name in images})

    def check(self, work: Path, built: Built) -> None:
        rows = 0
        for target in (PROMPTS, EVAL_PROMPTS):
            if (work / target).is_file():
                for raw in raw_values(work / target):
                    media_prompt(
                        raw.value, default_id="", folder=work, place=f"{target}:{raw.number}"
                    )
                    rows += 1
        refuse_disagreement(work, rows, built)

    @cached_property
    def _images(self) -> list[Path]:
        """Every local condition image that a prompt shows, once each."""
        found: dict[Path, None] = {}
        for _, prompt in self._prompts(self.required, Tally()):
            for ref in prompt.media_refs:
                if not is_remote(ref.uri):
                    found[local_path(ref.uri)] = None
        return list(found)

    def _label(self, position: int, path: Path) -> str:
        """Return the image's path below the prompt files, or its position; never its path on this
        machine."""
        inside = path.is_relative_to(self.input_dir)
        if inside:
            return path.relative_to(self.input_dir).as_posix()
        return f"outside/{position}/{path.name}"

    def _prompts(self, names: Sequence[str], tally: Tally) -> Iterator[tuple[str, MediaPrompt]]:
        """Yield the prompts of some files with their places; those that break the contract are
        counted."""
        contract = media_contract(prompt_key=self.config.prompt_key)
        for name in names:
            file = self.input_dir / name

            def unreadable(number: int, error: DataError, file: Path = file) -> None:
                tally.refuse("unreadable_line", f"{file}:{number}", str(error))

            accepted = 0
            for raw in raw_values(file, prompt_key=self.config.prompt_key, on_bad_line=unreadable):
                if isinstance(raw.value, str):
                    row = {self.config.prompt_key: raw.value}
                else:
                    row = raw.value
                place = f"{file}:{raw.number}"
                if problems := contract.problems(row):
                    tally.refuse(slug(problems[0]), place, problems[0].at("").strip())
                    continue
                yield (
                    place,
                    media_prompt(
                        row,
                        default_id=f"{file.name}:{accepted}",
                        folder=base_of(file),
                        place=place,
                        prompt_key=self.config.prompt_key,
                    ),
                )
                accepted += 1

    def _row(
        self,
        prompt: MediaPrompt,
        place: str,
        stored: Mapping[Path, tuple[str, str | None]],
        seen: set[str],
        tally: Tally,
    ) -> dict[str, object] | None:
        if prompt.prompt_id in seen:
            tally.refuse(
                "duplicate_prompt_id",
                place,
                f"field prompt_id: {prompt.prompt_id!r} is taken already",
            )
            return None
        refs = []
        for ref in prompt.media_refs:
            uri, problem = (ref.uri, None) if is_remote(ref.uri) else stored[local_path(ref.uri)]
            if problem is not None:
                tally.refuse("unusable_image", place, f"field media_refs: {problem}")
                return None
            refs.append({"modality": ref.modality, "role": ref.role, "uri": uri})
        seen.add(prompt.prompt_id)
        tally.keep()
        row = {"prompt": prompt.prompt, "prompt_id": prompt.prompt_id, "metadata": prompt.metadata}
        if refs:
            return {**row, "media_refs": refs}
        return row

    def _store_images(self, work: Path, context: Context) -> dict[Path, tuple[str, str | None]]:
        """Store the images; return the name inside the cache, or the problem, by path."""
        paths = [str(path) for path in self._images]
        limits = MediaLimits(
            max_bytes=self.config.max_image_bytes, max_pixels=self.config.max_image_pixels
        )
        shares = []
        for i in range(min(self.num_workers, len(paths))):
            shares.append(paths[i :: self.num_workers])
        jobs = []
        for share in shares:
            jobs.append(
                ImageJob(
                    str(work), share, self.config.max_image_side, self.config.side_multiple, limits
                )
            )
        run = context.runner(sum(path.stat().st_size for path in self._images if path.is_file()))
        results = run(
            "rl_core.data.stages.diffusion:store_images",
            jobs,
            context.advance("fit images", len(paths)),
        )
        return {Path(path): found for part in results for path, found in part.items()}


def store_images(job: ImageJob, advance: Advance) -> dict[str, tuple[str, str | None]]:
    """Store the job's images; return for each path the name inside the cache and None, or an empty
    name and the problem."""
    results: dict[str, tuple[str, str | None]] = {}
    for path in job.paths:
        try:
            content = fitted_png(path, job.max_side, job.multiple, job.limits)
        except DataError as error:
            results[path] = ("", str(error))
        else:
            results[path] = (_store(Path(job.work), content), None)
        advance(1)
    return results


def fitted_png(path: str, max_side: int, multiple: int, limits: MediaLimits) -> bytes:
    """Return an image as RGB PNG, at most `max_side` pixels wide and high, both multiples of
    `multiple`.

    Raises: DataError when it is missing, not an image, beyond the limits, or too small for
    `multiple`.
    """
    from PIL import Image

    if not Path(path).is_file():
        raise DataError(f"{path}: no such image file")
    image = load_image(path, limits)
    scale = min(1.0, max_side / max(image.size))
    size = tuple(max(1, round(side * scale)) for side in image.size)
    if size != image.size:
        image = image.resize((size[0], size[1]), Image.Resampling.LANCZOS)
    width, height = (side // multiple * multiple for side in image.size)
    if not width or not height:
        raise DataError(
            f"{path}: {image.width} x {image.height} pixels are fewer than side_multiple {multiple}"
        )
    left, top = (image.width - width) // 2, (image.height - height) // 2
    file = io.BytesIO()
    image.crop((left, top, left + width, top + height)).save(file, "PNG")
    return file.getvalue()


def _store(work: Path, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    name = f"images/{digest[:2]}/{digest}.png"
    target = work / name
    target.parent.mkdir(parents=True, exist_ok=True)
    # Another worker may be writing the same content; the last rename wins, and both are right.
    temporary = target.with_name(f"{digest}.{os.getpid()}-{threading.get_ident()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(target)
    return name
