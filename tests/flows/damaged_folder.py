"""A folder of files as they should not be, one a kind of damage, for `test_damaged_commands`."""

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

GOOD = {
    "prompt": [{"role": "user", "content": "1 + 2"}],
    "env_class": "gsm8k",
    "reward_spec": {"method": "rule", "ground_truth": "3"},
}
RECIPE = """
name: mine
model: {path: "embedded:smollm2-135m-instruct"}
data: {train: [good.jsonl], eval: [other.jsonl]}
"""
LONG = "x" * 5000
NOT_UTF8 = "n\udcff"
"""A name that holds the byte 0xff."""


def make_folder(folder: Path) -> None:
    """Write good rows and a good recipe, and the damaged files."""
    lines = [json.dumps(GOOD | {"extra_info": {"n": number}}) for number in range(4)]
    good = "".join(line + "\n" for line in lines)
    (folder / "good.jsonl").write_text(good)
    other = json.dumps(GOOD).replace("1 + 2", "2 + 2") + "\n"
    (folder / "other.jsonl").write_text(other)
    (folder / "good.yaml").write_text(RECIPE)
    (folder / "corpus.jsonl").write_text('{"contents": "one"}\n')
    (folder / "scorers.yaml").write_text(f"{RECIPE}\nrewards: [{{name: math}}]\n")
    _damaged_rows(folder, good)
    _damaged_settings(folder)
    (folder / "folder.jsonl").mkdir()
    (folder / "folder.yaml").mkdir()
    (folder / "empty-folder").mkdir()
    for name in ("pipe.jsonl", "pipe.yaml"):
        os.mkfifo(folder / name)
    for name in ("loop.jsonl", "loop.yaml", "loop"):
        (folder / name).symlink_to(name)
    home = folder / "broken-home"
    (home / "runs" / "mine").mkdir(parents=True)
    (home / "runs" / "mine" / "run.json").write_text("{")
    (home / "services.json").write_text("{")
    (home / "mlflow.db").write_text("no database")
    (folder / "full").mkdir()
    (folder / "full" / "kept.txt").write_text("kept")


def _damaged_rows(folder: Path, good: str) -> None:
    pq.write_table(pa.Table.from_pylist([GOOD] * 50), folder / "whole.parquet")
    whole = (folder / "whole.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[:-40])
    (folder / "gap.parquet").write_bytes(whole[:20] + b"\0" * 60 + whole[80:])
    (folder / "cut.jsonl").write_text(good[:-30])
    (folder / "cut.json").write_text(json.dumps([GOOD])[:-5])
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(good.encode())[:-12])
    (folder / "plain.jsonl.gz").write_text(good)
    (folder / "plain.jsonl.zst").write_text(good)
    (folder / "cut.zip").write_bytes(b"PK\x03\x04" + bytes(30))
    (folder / "empty.jsonl").touch()
    (folder / "blank.jsonl").write_text("\n \n")
    (folder / "latin.jsonl").write_bytes(good.replace("1 + 2", "é").encode("latin-1"))
    (folder / "utf16.jsonl").write_bytes(good.encode("utf-16"))
    (folder / "number.json").write_text("3")
    (folder / "object.json").write_text("{}")
    (folder / "nulls.jsonl").write_text("null\n[]\n3\n")
    (folder / "holes.csv").write_text('prompt,answer\n"1 + 1\n')
    for suffix in ("jsonl", "json", "parquet", "csv", "txt", "arrow", "yaml", "rows"):
        (folder / f"binary.{suffix}").write_bytes(bytes(range(256)) * 8)


def _damaged_settings(folder: Path) -> None:
    for name, text in {
        "cut": "name: mine\nmodel: {path: x",
        "list": "- a\n- b\n",
        "word": "text\n",
        "empty": "",
        "comment": "# nothing\n",
        "unknown": f"{RECIPE}\nlerning_rate: 3\n",
        "wrong": f"{RECIPE}\ntraining: 5\n",
        "number-name": RECIPE.replace("mine", "[3]"),
        "twice": f"{RECIPE}\nseed: 1\nseed: 2\n",
        "tab": "name: mine\n\tseed: 1\n",
        "circle": f"{RECIPE}\nseed: ${{seed}}\n",
        "unset": f"{RECIPE}\nseed: ${{oc.env:NO_SUCH_VARIABLE}}\n",
        "resolver": f"{RECIPE}\nseed: ${{nosuch:1}}\n",
        "open": f"{RECIPE}\nseed: '${{'\n",
        "self": "name: &a [*a]\n",
        "alias": "name: *nowhere\n",
        "python": "name: !!python/object/apply:os.system [true]\n",
        "two": f"{RECIPE}\n---\n{RECIPE}",
        "keys": f"{RECIPE}\n3: 4\n? [a, b]\n: c\n",
        "date": f"{RECIPE}\nseed: 2020-99-99\n",
        "profile": f"{RECIPE}\nprofile: nosuch\n",
        "placement": f"{RECIPE}\nplacement: [cpu]\n",
        "no-rows": RECIPE.replace("good.jsonl", "nothing.jsonl"),
        "bad-rows": RECIPE.replace("good.jsonl", "nulls.jsonl"),
        "rewards": f"{RECIPE}\nrewards: [{{name: nosuch}}]\n",
        "deep": "name: " + "[" * 5000,
        "nul": "name: a\0b\n",
    }.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "latin.yaml").write_bytes("name: é\n".encode("latin-1"))
    (folder / "utf16.yaml").write_bytes(RECIPE.encode("utf-16"))
