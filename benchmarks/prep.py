"""Preparation of an archive of small images, compared with `unzip` on the same archive in the same
run.

    make bench-prep            # 20,000 images
    make bench-prep IMAGES=2000

Each is timed several times in turn, after a flush of the disk, and the minimum is compared: on a
shared machine one figure says little, and CPU seconds say more than wall-clock time. `unpack` is
the stage's work on the archive (unpack, digest and check every image, all cores); `prepare` is
`rl-train prep -c vision` from its start to the published cache; `hit` is the same command again.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rl_core.builtin.data.picture_rows import ARCHIVE_TIME
from rl_core.data.prepare.workers import num_cores, run_in_processes
from rl_core.data.read.archives import ArchiveLimits, extract, list_members
from rl_core.data.read.unpack import ImageCheck


def make_raw(raw: Path, num_images: int) -> None:
    """Create MMPR-Tiny with small pictures, half PNG and half JPEG, about 9 KB each."""
    import io

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    rng, rows = np.random.default_rng(0), []
    ground = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
    raw.mkdir(parents=True)
    with zipfile.ZipFile(raw / "images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for index in range(num_images):
            image = Image.fromarray(np.roll(ground, index % 12, 0) ^ np.uint8(index % 251)).resize(
                (96, 96)
            )
            kind, file = ("JPEG", io.BytesIO()) if index % 2 else ("PNG", io.BytesIO())
            image.save(file, kind)
            name = f"images/{index // 1000:02d}/{index:05d}.{kind.lower()}"
            archive.writestr(
                zipfile.ZipInfo(name, ARCHIVE_TIME), file.getvalue(), zipfile.ZIP_DEFLATED
            )
            prompt = [{"content": "<image>\nWhat is this?", "role": "user"}]
            reward = {"ground_truth": str(index), "style": "rule"}
            rows.append({"prompt": prompt, "images": [{"path": name}], "reward_model": reward})
    pq.write_table(pa.Table.from_pylist(rows), raw / "mmpr_tiny.parquet")


class Timing(NamedTuple):
    """One measurement, in seconds."""

    wall: float
    cpu: float
    """CPU seconds of the process and its children, over all cores."""


def timed(action: Callable[[], object]) -> Timing:
    os.sync()
    before, started = os.times(), time.perf_counter()
    action()
    after = os.times()
    return Timing(time.perf_counter() - started, sum(after[:4]) - sum(before[:4]))


def unzip(archive: Path, out: Path) -> None:
    if shutil.which("unzip"):
        subprocess.run(["unzip", "-q", str(archive), "-d", str(out)], check=True)
    else:
        with zipfile.ZipFile(archive) as source:
            source.extractall(out)


def unpack(archive: Path, out: Path, check: ImageCheck) -> None:
    out.mkdir()
    members = list_members(archive, ArchiveLimits(), "/".join)
    run, workers = run_in_processes, num_cores()
    extract(
        archive,
        out,
        members,
        check=check,
        num_workers=workers,
        run=run,
        advance=lambda _count: None,
    )


def prep(raw: Path, out: Path, home: Path) -> None:
    where = ["--input-dir", str(raw), "--output-dir", str(out), "--no-register"]
    command = [sys.executable, "-m", "flows.cli", "prep", "-c", "vision", *where]
    environment = {**os.environ, "RL_TRAIN_HOME": str(home)}
    subprocess.run(command, check=True, env=environment, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-prep-") as name:
        folder = Path(name)
        raw, archive = folder / "raw", folder / "raw" / "images.zip"
        make_raw(raw, given.images)
        print(
            f"{given.images} images, {archive.stat().st_size / 2**20:.0f} MiB packed, "
            f"{num_cores()} cores"
        )
        if shutil.which("unzip"):
            peer = "unzip"
        else:
            peer = "Python zipfile, one thread (unzip is not installed)"
        timings: dict[str, list[Timing]] = {}
        for round_number in range(given.rounds):
            actions: dict[str, Callable[[Path], object]] = {
                peer: lambda out: unzip(archive, out),
                "unpack, no image check": lambda out: unpack(archive, out, ImageCheck.NONE),
                "unpack, structure check (default)": lambda out: unpack(
                    archive, out, ImageCheck.STRUCTURE
                ),
                "unpack, every pixel decoded": lambda out: unpack(archive, out, ImageCheck.DECODE),
                "prepare (whole command)": lambda out: prep(raw, out, folder / "home"),
            }
            for label, action in actions.items():
                out = folder / f"out-{round_number}"
                timings.setdefault(label, []).append(
                    timed(lambda action=action, out=out: action(out))
                )
                if label.startswith("prepare"):
                    hit = timed(lambda out=out: prep(raw, out, folder / "home"))
                    timings.setdefault("hit (whole command)", []).append(hit)
                print(
                    f"round {round_number + 1}: {label} {timings[label][-1].wall:.2f} s",
                    file=sys.stderr,
                    flush=True,
                )
                shutil.rmtree(out)
                shutil.rmtree(folder / ".receipts", ignore_errors=True)
        base = [min(part) for part in zip(*timings[peer], strict=True)]
        print(f"{'seconds, best of ' + str(given.rounds):36} {'wall':>7} {'':>8} {'CPU':>7}")
        for label, values in timings.items():
            wall, cpu = (min(part) for part in zip(*values, strict=True))
            print(f"{label:36} {wall:7.2f} {wall / base[0]:7.2f}x {cpu:7.2f} {cpu / base[1]:7.2f}x")


if __name__ == "__main__":
    main()
