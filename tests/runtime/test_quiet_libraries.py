"""Messages of libraries that say nothing about a run."""

import subprocess
import sys


def test_import_of_adapters_prints_nothing():
    """bitsandbytes, which peft imports, asks for a kernel of the model hub on some processors."""
    code = "import rl_core, peft"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert ended.stdout + ended.stderr == ""
