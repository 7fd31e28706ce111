"""A command that builds a stage's cache in place of the stage's own code."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from rl_core.data.prepare.fingerprint import sha256_file
from rl_core.data.store.publish import RECEIPTS
from rl_core.errors import DataError

_LAST_LINES = 5


def run_builder(command: str, input_dir: Path, work: Path, folder: str, sentinel: str) -> None:
    """Fill `work` with what `<command> --input-dir … --output-dir …/<folder>` writes there.

    Args: folder: name of the output folder, as a script may depend on it. sentinel: file with which
    the command may mark its output as complete; the stage writes its own.
    Raises: DataError with the command's last lines when it fails or writes nothing.
    """
    own = work / ".by-command"
    output = own / folder
    words = shlex.split(command)
    if words and words[0] in ("python", "python3"):
        # The interpreter that has this project's packages, whatever the PATH says.
        words[0] = sys.executable
    arguments = ["--input-dir", str(input_dir.resolve()), "--output-dir", str(output)]
    try:
        done = subprocess.run(
            [*words, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError as error:
        raise DataError(f"builder_command: {command}: cannot be started ({error})") from error
    if done.returncode != 0:
        said = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise DataError(f"builder_command: {command}: exit code {done.returncode}\n{said}")
    if not output.is_dir():
        raise DataError(f"builder_command: {command}: wrote no folder {folder}")
    for path in output.iterdir():
        if path.name not in (sentinel, RECEIPTS):
            shutil.move(path, work / path.name)
    shutil.rmtree(own)


def identity_of(command: str) -> str:
    """Return the command with the digest of each file that it names, for the run hash."""
    files = [Path(word) for word in shlex.split(command) if Path(word).is_file()]
    return " ".join([command, *(sha256_file(file) for file in files)])
