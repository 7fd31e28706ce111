"""The stage `mpo`: the public MMPR preference data as one cache, `MMPR-v1.2/`.

Raw inputs: a meta file (root, annotation and length of each subset), annotations and images, each
as zip archives or folders. The upstream meta has absolute paths of another machine; here every path
is relative to the cache.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field

from rl_core.data.order.preference_dataset import META, SENTINEL, read_meta, row_offsets
from rl_core.data.read.archives import (
    ArchiveLimits,
    Parts,
    extract,
    folder_members,
    list_members,
    refuse_clashes,
)
from rl_core.data.read.raw_dir import content_files
from rl_core.data.read.unpack import Extracted, ImageCheck, Member
from rl_core.data.stages import stages
from rl_core.data.stages.annotations import Share, Subset, find_annotations, name_annotations
from rl_core.data.stages.base import (
    Context,
    Stage,
    StageConfig,
    Tally,
    refuse_disagreement,
    write_json,
    write_preview,
)
from rl_core.data.stages.builder import identity_of, run_builder
from rl_core.data.store.publish import Built
from rl_core.errors import DataError

FOLDER = "MMPR-v1.2"
IMAGES, ANNOTATIONS = "MMPR/images", "MMPR/annotations"
PREVIEW = "mmpr_public_preview.jsonl"
SUMMARY = "prepare_public_mmpr_for_mpo_summary.json"
_ENTRY_KEYS = ("root", "annotation", "length")


class MPOConfig(StageConfig):
    """Settings of the stage `mpo`."""

    dataset_name: str = "mmpr_public"
    meta_file: str = "meta.json"
    """The upstream meta, relative to `input_dir`."""
    archive: ArchiveLimits = Field(default_factory=ArchiveLimits)
    """Bounds on each archive."""
    check_images: ImageCheck = ImageCheck.STRUCTURE
    """Check of each image."""
    preview_rows: int = Field(default=2, ge=0)
    """Number of rows of each subset in the preview."""
    meta_paths: Literal["relative", "absolute"] = "relative"
    """Paths in `meta_public.json`: from the cache's root, so that the cache can be moved, or those
    of this machine, for loaders that want them."""
    builder_command: str | None = None
    """Command that builds the cache instead; called with --input-dir and --output-dir."""


@stages.register("mpo")
class MPO(Stage[MPOConfig]):
    """MMPR: meta, annotations and images, in any layout in which the meta's entries can be
    found."""

    Config = MPOConfig
    code_version = "1"
    artifact = "omni3/rl/mpo/data"
    sentinel = SENTINEL
    env_name = "OMNI3_MMPR_PUBLIC_RAW"

    @property
    def output(self) -> Path:
        output = super().output
        if output.name == FOLDER:
            return output
        return output / FOLDER

    @property
    def artifact_path(self) -> Path:
        return self.output / META

    def inputs(self) -> Mapping[str, Path]:
        if not (self.input_dir / self.config.meta_file).is_file():
            raise DataError(
                f"{self.input_dir}: no {self.config.meta_file}; set meta_file to the name of the "
                "meta there"
            )
        files: dict[str, Path] = {}
        for path in content_files(self.input_dir):
            files[path.relative_to(self.input_dir).as_posix()] = path
        return files

    def parameters(self) -> dict[str, str]:
        parts = super().parameters()
        # The keys are younger than published caches, which stay what they are.
        if self.config.meta_paths == "relative":
            del parts["meta_paths"]
        del parts["builder_command"]
        command = self.config.builder_command
        return parts | ({"builder command": identity_of(command)} if command else {})

    def build(self, work: Path, context: Context) -> Built:
        if self.config.builder_command is not None:
            return self._build_by_command(self.config.builder_command, work)
        meta = self._read_meta()
        images = self._unpack_images(work, context)
        sources = find_annotations(
            self.input_dir, {name: entry["annotation"] for name, entry in meta.items()}
        )
        files = name_annotations({name: entry["annotation"] for name, entry in meta.items()})
        (work / ANNOTATIONS).mkdir(parents=True)
        subsets = []
        for name, entry in meta.items():
            subsets.append(
                Subset(
                    name=name,
                    source=sources[name],
                    work=str(work),
                    root=cache_root_of(entry["root"]),
                    target=f"{ANNOTATIONS}/{files[name]}",
                    preview_rows=self.config.preview_rows,
                )
            )
        judged = context.runner(sum(path.stat().st_size for path in self.inputs().values()))(
            "rl_core.data.stages.annotations:judge_subsets",
            [
                Share(subsets[i :: self.num_workers], images.bad_images)
                for i in range(min(self.num_workers, len(subsets)))
            ],
            context.advance("check annotations", len(subsets)),
        )
        by_name = {one.name: one for part in judged for one in part}
        results = [by_name[name] for name in meta]
        tally = Tally()
        for one in results:
            tally.add(one.tally)
        tally.apply(self.config, self.input_dir)
        published = {
            subset.name: {
                **meta[subset.name],
                "root": self._place_in_meta(subset.root),
                "annotation": self._place_in_meta(subset.target),
                "length": one.tally.kept,
            }
            for subset, one in zip(subsets, results, strict=True)
            if one.tally.kept
        }
        write_json(work / META, published)
        write_preview(work / PREVIEW, [row for one in results for row in one.preview])
        mismatches = {
            one.name: {"meta": meta[one.name]["length"], "file": one.tally.total}
            for one in results
            if meta[one.name]["length"] != one.tally.total
        }
        write_json(
            work / SUMMARY,
            {
                "dataset_name": self.config.dataset_name,
                "row_stats": tally.counts(),
                "subsets": {one.name: one.tally.counts() for one in results},
                "length_mismatches": mismatches,
                "num_images": len(images.digests),
                "num_bad_images": len(images.bad_images),
            },
        )
        extra = {"length_mismatches": len(mismatches)} if mismatches else {}
        digests = {subset.target: one.digest for subset, one in zip(subsets, results, strict=True)}
        return Built({**tally.counts(), **extra}, {**images.digests, **digests})

    def check(self, work: Path, built: Built) -> None:
        refuse_disagreement(work, self._num_rows(work), built)

    def _num_rows(self, work: Path) -> int:
        """Count the rows of an unpublished cache, whose absolute paths are not there yet."""
        meta = read_meta(work)
        for entry in meta.values():
            annotation = Path(entry["annotation"])
            if annotation.is_relative_to(self.output):
                entry["annotation"] = annotation.relative_to(self.output).as_posix()
        return sum(len(row_offsets(work, name, entry)) for name, entry in meta.items())

    def _build_by_command(self, command: str, work: Path) -> Built:
        run_builder(command, self.input_dir, work, FOLDER, self.sentinel)
        num_rows = self._num_rows(work)
        summary = work / SUMMARY
        stated = json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else {}
        return Built(stated.get("row_stats", {"total": num_rows, "kept": num_rows}))

    def _place_in_meta(self, inside: str) -> str:
        if self.config.meta_paths == "relative":
            return inside
        return str(self.output / inside)

    def _read_meta(self) -> dict[str, dict[str, Any]]:
        path = self.input_dir / self.config.meta_file
        try:
            meta = json.loads(path.read_text(encoding="utf-8-sig"))
        except ValueError as error:
            raise DataError(f"{path}: not valid JSON ({error})") from error
        if not isinstance(meta, dict) or not meta:
            raise DataError(
                f"{path}: expected an object, subset name -> {{{', '.join(_ENTRY_KEYS)}}}"
            )
        for name, entry in meta.items():
            missing = []
            for key in _ENTRY_KEYS:
                if not isinstance(entry, dict) or entry.get(key) is None:
                    missing.append(key)
            if missing:
                raise DataError(
                    f"{path}: subset {name!r} lacks {', '.join(missing)}; expected "
                    f"{', '.join(_ENTRY_KEYS)}"
                )
            if not isinstance(entry["length"], int):
                raise DataError(
                    f"{path}: subset {name!r} length {entry['length']!r}; expected a number of rows"
                )
            cache_root_of(entry["root"], where=f"{path}: subset {name!r} root")
        return meta

    def _unpack_images(self, work: Path, context: Context) -> Extracted:
        """Unpack the images of every archive and folder to `MMPR/images/`."""
        parts = [(path, members) for path, members in self._image_sources() if members]
        refuse_clashes([member for _, members in parts for member in members], str(self.input_dir))
        advance = context.advance("unpack images", sum(len(members) for _, members in parts))
        digests: dict[str, str] = {}
        bad: dict[str, str] = {}
        for path, members in parts:
            out = extract(
                path,
                work,
                members,
                check=self.config.check_images,
                num_workers=self.num_workers,
                run=context.runner(sum(member.num_bytes for member in members)),
                advance=advance,
            )
            digests |= out.digests
            bad |= out.bad_images
        if not digests:
            raise DataError(f"{self.input_dir}: no images; expected images.zip or a folder images/")
        return Extracted(digests, bad)

    def _image_sources(self) -> Iterator[tuple[Path, list[Member]]]:
        files = list(content_files(self.input_dir))
        archives = [path for path in files if path.suffix.lower() == ".zip"]
        for path in archives:
            if not path.name.lower().startswith("annotation"):
                yield path, list_members(path, self.config.archive, _place)
        loose = [
            path
            for path in files
            if path not in archives and "images" in path.relative_to(self.input_dir).parts
        ]
        yield self.input_dir, folder_members(self.input_dir, loose, _place)


def cache_root_of(root: str, where: str = "root") -> str:
    """Return a subset's image folder inside the cache: the part after the last `images` of the
    upstream path.

    Raises: DataError when it leads out of the cache.
    """
    parts = []
    for part in PurePosixPath(str(root).replace("\\", "/")).parts:
        if part not in ("/", "."):
            parts.append(part)
    if ".." in parts:
        raise DataError(f"{where}: {root!r} climbs; expected a path below images/")
    last = len(parts) - 1 - parts[::-1].index("images") if "images" in parts else None
    below = parts[last + 1 :] if last is not None else parts[-1:]
    return PurePosixPath(IMAGES, *below).as_posix()


def _place(parts: Parts) -> str | None:
    """Map `[…/]images/<rest>` to `MMPR/images/<rest>`; an archive without such a folder is placed
    there as a whole."""
    if (
        parts[0] == "__MACOSX"
        or parts[-1].startswith(".")
        or parts[-1].lower().endswith((".json", ".jsonl"))
    ):
        return None
    below = parts[parts.index("images") + 1 :] if "images" in parts[:-1] else parts
    return "/".join((IMAGES, *below))
