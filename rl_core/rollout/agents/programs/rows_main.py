"""Main program that writes the tasks of another package's environment as rows, a line of JSON each.

It runs in the interpreter that has the package. Standard input holds the order: a program of this
folder, its settings, and folders of modules.
"""

import importlib
import json
import os
import sys


def main():
    """Write the rows to standard output; an error is the last line."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What the package prints must not end up among the rows.
    os.dup2(2, 1)
    order = json.load(sys.stdin)
    sys.path[:0] = [path for path in order["path"] if path not in sys.path]
    with out:
        try:
            for row in importlib.import_module(order["program"]).rows(order["settings"]):
                out.write(json.dumps(row) + "\n")
        except Exception as error:
            kind = "" if isinstance(error, LookupError) else f"{type(error).__name__}: "
            out.write(json.dumps({"error": f"{kind}{error}"}) + "\n")


if __name__ == "__main__":
    main()
