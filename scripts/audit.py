"""Compares the packages of an environment with the published weaknesses (`make audit`).

pip-audit asks PyPI's database. Where that cannot be reached it skips every package and ends well,
so what was really compared is counted here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FOUND, NOT_COMPARED = 1, 2
TIMEOUT_S = "15"


def main(pip_audit: str, packages: str) -> int:
    """Print what is known of the packages in a folder. Returns: 0 if nothing is, 1 if something
    is, 2 if nothing could be compared."""
    command = [pip_audit, "--path", packages, "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(
        [*command, "--timeout", TIMEOUT_S], capture_output=True, text=True, check=False
    )
    try:
        listed = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        listed = []
    compared = [one for one in listed if "skip_reason" not in one]
    if not compared:
        skipped = [one["skip_reason"] for one in listed[:1]]
        reason = (skipped or done.stderr.strip().splitlines()[-1:] or ["pip-audit said nothing"])[0]
        print(
            f"nothing was compared, of {len(listed)} packages: PyPI's database of weaknesses does "
            f"not answer from here ({reason[:200]}); run make audit on a machine with internet "
            "access",
            file=sys.stderr,
        )
        return NOT_COMPARED
    weak = [one for one in compared if one["vulns"]]
    for one in weak:
        for weakness in one["vulns"]:
            fixed = ", ".join(weakness["fix_versions"]) or "no version yet"
            print(f"{one['name']} {one['version']}: {weakness['id']}, fixed in {fixed}")
    print(
        f"{len(compared)} packages compared, {len(weak)} with known weaknesses; "
        f"{len(listed) - len(compared)} are not in the database"
    )
    return FOUND if weak else 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if len(arguments) != 2 or not Path(arguments[1]).is_dir():
        raise SystemExit("usage: audit.py PIP_AUDIT SITE_PACKAGES")
    raise SystemExit(main(*arguments))
