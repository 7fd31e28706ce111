"""Every test of an attack, run and counted by what is attacked: `make siege`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

REPOSITORY = Path(__file__).resolve().parents[1]
ATTACKS = {
    "sandbox": (
        "tests/envs/test_sandbox_attacks.py",
        "tests/envs/test_sandbox_limits.py",
        "tests/envs/test_seccomp.py",
    ),
    "grading": (
        "tests/envs/test_hostile_replies.py",
        "tests/envs/test_reasoning_gym_replies.py",
        "tests/rewards/judging/test_hostile_replies.py",
    ),
    "SQL": ("tests/envs/test_sql_attacks.py",),
    "archives": ("tests/data/stages/test_hostile_archives.py",),
    "rows and pictures": (
        "tests/data/test_bad_input.py",
        "tests/schemas/rows/test_media_and_preference_rows.py",
    ),
    "addresses in rows": ("tests/schemas/rows/test_public_hosts.py",),
    "control tokens in rows": ("tests/rollout/chat/test_control_tokens.py",),
    "model folders": ("tests/flows/test_dry_run_models.py",),
    "servers": (
        "tests/services/test_catalogue.py",
        "tests/services/test_key_required.py",
        "tests/services/test_mlflow_app.py",
        "tests/services/test_services.py",
        "tests/ranks/test_meeting_store.py",
        "tests/rewards/test_server_and_remote.py",
        "tests/envs/test_search_attacks.py",
    ),
    "browser": ("tests/services/test_own_pages.py", "tests/flows/test_local_api.py"),
    "endpoint": ("tests/serving/test_endpoint.py",),
    "commands": ("tests/flows/test_damaged_commands.py",),
    "disk": ("tests/data/store/test_faulty_disk.py",),
    "secrets": ("tests/runtime/test_secrets.py",),
}
"""Files of the tests of each kind of attack."""
OUTCOMES = ("held", "got through", "skipped")


def outcomes(report: Path) -> dict[str, Counter[str]]:
    """Return how often each outcome came, by the file of the test, of pytest's JUnit report."""
    found: dict[str, Counter[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        name = "got through" if kinds & {"failure", "error"} else "held"
        name = "skipped" if "skipped" in kinds else name
        # A class would stand behind the module; these tests have none.
        file = case.get("classname", "").replace(".", "/") + ".py"
        found.setdefault(file, Counter())[name] += 1
    return found


def main(kinds: list[str]) -> int:
    """Run the tests of some kinds of attacks, or all, and print a table. Returns: pytest's exit
    code."""
    chosen = {kind: ATTACKS[kind] for kind in kinds or ATTACKS}
    files = [file for one in chosen.values() for file in one]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *files]
        code = subprocess.run(command, cwd=REPOSITORY, check=False).returncode
        found = outcomes(report)
    print(f"\n| attacked | {' | '.join(OUTCOMES)} |\n|---|{'---|' * len(OUTCOMES)}")
    for kind, its_files in chosen.items():
        count = sum((found.get(file, Counter()) for file in its_files), Counter[str]())
        print(f"| {kind} | {' | '.join(str(count[name]) for name in OUTCOMES)} |")
    return code


if __name__ == "__main__":
    unknown = [kind for kind in sys.argv[1:] if kind not in ATTACKS]
    if unknown:
        raise SystemExit(f"no attacks on {unknown}; there are {', '.join(ATTACKS)}")
    raise SystemExit(main(sys.argv[1:]))
