"""Wheels of what a machine with a GPU lacks, for a plain tree without network.

    python -m benchmarks.gpu_suite.wheels [--python 3.12]

Downloads the packages of `lacking.txt` beside this file, at the versions of constraints.txt, into
`.whl`, for Linux on x86-64. They and the tree have to stay under 64 MiB, which the command checks.
On the other machine the suite unpacks into a folder of its own what is missing there, or is there
in another version.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".whl"
LACKING = Path(__file__).parent / "lacking.txt"
MOST_BYTES = 64 * 2**20
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64")
PLATFORMS += ("manylinux_2_5_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")


def main() -> None:
    """Download the wheels and say how large they are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default="3.12", help="version of the other machine's Python")
    args = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", args.python]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, "-d", str(FOLDER), *pinned()], check=True)
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    tree = sum((ROOT / name).stat().st_size for name in tracked if (ROOT / name).is_file())
    wheels = sum(wheel.stat().st_size for wheel in FOLDER.glob("*.whl"))
    print(f".whl: {wheels / 2**20:.0f} MiB, and the tree {tree / 2**20:.0f} MiB")
    if wheels + tree > MOST_BYTES:
        raise SystemExit(f"together more than {MOST_BYTES // 2**20} MiB: shorten {LACKING.name}")


def pinned() -> list[str]:
    """Return the packages that the other machine lacks, at the versions of constraints.txt."""
    versions = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if found := re.fullmatch(r"([\w.-]+)==(\S+)", line.strip()):
            versions[_plain(found[1])] = found[2]
    names = [line.strip() for line in LACKING.read_text().splitlines()]
    wanted = []
    for name in names:
        if name and not name.startswith("#"):
            version = versions.get(_plain(name))
            wanted.append(name if "==" in name or version is None else f"{name}=={version}")
    return wanted


def unpacked(wheels: Path, target: Path) -> Path | None:
    """Install the wheels that this Python lacks, or has in another version, into a folder.

    Returns: the folder; None if there is nothing to install.
    """
    lacking = [str(wheel) for wheel in sorted(wheels.glob("*.whl")) if not _is_installed(wheel)]
    if not lacking:
        return None
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    ended = subprocess.run([*command, "--no-compile", "--target", str(target), *lacking])
    if ended.returncode:
        print(f"pip could not install the wheels of {wheels.name}; the parts that need them say so")
    return target if target.is_dir() else None


def _is_installed(wheel: Path) -> bool:
    name, version = wheel.name.split("-")[:2]
    try:
        return importlib.metadata.version(name) == version
    except importlib.metadata.PackageNotFoundError:
        return False


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
