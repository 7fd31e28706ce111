"""Command lines that cannot work: the command's own parameters, each with every damage that its
kind can have.

A line is made of the command's sound arguments (`SOUND`) with one of them replaced. A new parameter
needs its kind in `KINDS`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import typer

from flows.cli import app
from tests.flows.damaged_folder import LONG, NOT_UTF8

MODEL = "rl-train-mine"
REGISTERED = f"models:/{MODEL}/1"
"""A version that there is, for commands that need one."""
SOUND: dict[str, dict[str, list[str]]] = {
    "validate": {"paths": ["good.jsonl"]},
    "prep": {"config": ["text"], "input_dir": ["empty-folder"], "dry_run": []},
    "serve-search": {"corpus": ["corpus.jsonl"], "port": ["0"]},
    "serve-rewards": {"recipe": ["scorers.yaml"], "port": ["0"]},
    "serve-demo": {"model": ["embedded:smollm2-135m-instruct"], "port": ["0"]},
    "serve": {"model": ["embedded:smollm2-135m-instruct"], "port": ["0"]},
    "lineage": {"model": [MODEL], "version": ["1"]},
    "promote": {"name": [MODEL], "version": ["1"]},
    "reproduce": {"model": [MODEL], "version": ["1"]},
    "eval": {"model": ["embedded:smollm2-135m-instruct"], "recipe": ["good.yaml"]},
    "export": {"model": [MODEL], "version": ["1"]},
    "push": {"model": [REGISTERED], "repository": ["nobody/nothing"]},
    "report": {"run": [REGISTERED]},
    "compare": {"runs": [REGISTERED, REGISTERED]},
    "rollouts": {"run": [REGISTERED]},
    "rescore": {"run": [REGISTERED], "recipe": ["good.yaml"]},
    "run": {"recipe": ["good.yaml"], "overrides": [], "dry_run": []},
    **{f"launch {kind}": {"recipe": ["good.yaml"]} for kind in ("slurm", "skypilot")},
    "launch k8s": {"recipe": ["good.yaml"], "storage": ["s3://bucket/runs"]},
    "data convert": {"source": ["good.jsonl"], "target": ["written.jsonl"]},
    "data announce": {"uri": ["good.jsonl"]},
    "data make-fixture": {"folder": ["made"]},
    "doctor": {},
    "up": {},
    "status": {},
    "down": {},
    "deploy": {"recipe": ["good.yaml"], "name": ["mine"]},
    "recipes": {},
    "open": {},
    "config show": {"recipe": ["good.yaml"]},
    "config diff": {"recipe": ["good.yaml"]},
    "sweep": {"recipe": ["good.yaml"], "assignments": ["seed=1,2"], "dry_run": []},
    "runs": {},
    "models": {},
    "init": {"folder": ["made"]},
    "envs list": {},
    "envs try": {"name": ["gsm8k"], "recipe": ["good.yaml"], "reply": ["x"]},
}
"""Arguments with which a command reaches the damaged one."""

ROWS = [
    *("nothing.jsonl", "nothing/at/all.parquet", "no such.txt", "/nowhere/a.jsonl", "*.nothing"),
    *("folder.jsonl", "empty-folder", "pipe.jsonl", "loop.jsonl", "loop", "/dev/null"),
    *("cut.parquet", "gap.parquet", "cut.jsonl", "cut.json", "cut.jsonl.gz", "plain.jsonl.gz"),
    *("plain.jsonl.zst", "cut.zip", "empty.jsonl", "blank.jsonl", "latin.jsonl", "utf16.jsonl"),
    *("number.json", "object.json", "nulls.jsonl", "holes.csv", "binary.jsonl", "binary.json"),
    *("binary.parquet", "binary.csv", "binary.txt", "binary.arrow", "binary.rows"),
    *("", " ", "[", "good.jsonl:test", "empty-folder:test", "~nobody-here/a", f"{LONG}.jsonl"),
    *("two\nlines.jsonl", "\x1b[31mred.jsonl", f"{NOT_UTF8}.jsonl", "nosuch/dataset@x:y", "hf://"),
    *("file:///nowhere/a.jsonl", "s3://", "https://", "http://127.0.0.1:9/a.jsonl", "art://nosuch"),
    *("s4://bucket/a.jsonl", "http://[", "a?b#c%.jsonl", "mine@v1"),
]
RECIPES = [
    *("nosuch", "txt", "", " ", "/", ".", "../recipes/text", "nothing.yaml", "folder.yaml"),
    *("good.jsonl", "binary.yaml", "pipe.yaml", "loop.yaml", "cut.yaml", "list.yaml", "word.yaml"),
    *("empty.yaml", "comment.yaml", "unknown.yaml", "wrong.yaml", "number-name.yaml", "twice.yaml"),
    *("tab.yaml", "circle.yaml", "unset.yaml", "resolver.yaml", "open.yaml", "self.yaml"),
    *("alias.yaml", "python.yaml", "two.yaml", "keys.yaml", "date.yaml", "profile.yaml"),
    *("placement.yaml", "rewards.yaml", "deep.yaml", "nul.yaml"),
    *("latin.yaml", "utf16.yaml", f"{LONG}.yaml", f"{NOT_UTF8}.yaml", "two\nlines.yaml", "[.yaml"),
]
OVERRIDES = [
    *("a.b.c=", "=x", "[", "=", "seed", "a.b.c", ".=1", "seed.=1", ".seed=1", "a..b=1", "seed[=1"),
    *("data.train.0.size=50", "data.train.99.size=1", "data.train.x=1", "data.train[0].size=1"),
    *("seed=nan", "seed=.nan", "seed=-1", "seed=1e400", "seed=text", "seed=null", "seed={}"),
    *("seed=1.5", "seed=${seed}", "seed=${oc.env:NO_SUCH_VARIABLE}", "seed=${nosuch:1}", "seed=${"),
    *("training.num_iterations=0", "training.num_iterations=-5", "training.num_iterations=1e30"),
    *("training=5", "training={", "training=", "model.path=", "model.path=[a]"),
    *("model.path=nowhere/to/be", "model.path=./nowhere", "model.path=embedded:nosuch"),
    *("model.path=good.jsonl", "model.path=empty-folder", "model.path=nosuch/model"),
    *("optimizer.learning_rate=.nan", "optimizer.learning_rate=.inf", "optimizer.learning_rate=-1"),
    *("optimizer.learning_rate=fast", "algorithm=", "algorithm={name: nosuch}", "algorithm.name="),
    *("algorithm={target: 'nowhere:X'}", "algorithm={target: 'os:path'}", "algorithm={target: ''}"),
    *("algorithm={target: 5}", "algorithm={name: grpo, target: 'a:b'}", "algorithm=[]"),
    *("rewards=[{name: nosuch}]", "rewards={}", "rewards=[3]", "domain=nosuch", "domain=diffusion"),
    *("data.train=", "data.train=[]", "data.train=[nothing.jsonl]", "data.train=[3]"),
    *("data.train=x", "data.train=[null]", "data.train=['']"),
    *("data.train=[{path: nothing.jsonl}]", "data.train=[{task: nosuch}]", "data.train=[{}]"),
    *("data.eval=[binary.jsonl]", "data.train=[pipe.jsonl]"),
    *("data.map={prompt: 5}", "data.map={prompt: 'a|nosuch'}", "data.map=3"),
    *("data.default_env_class=nosuch", "environments={nosuch: {}}"),
    *("environments={gsm8k: {nosuch: 1}}", "environments=[]", "environments={gsm8k: 3}"),
    *("data.source={name: nosuch}", "data.source=3", "placement.num_devices=0", "profile=nosuch"),
    *("placement.num_devices=999999999", "placement.device=tpu", "placement=[]", "name="),
    *("name={}", "name=../../climbs", "rollout.temperature=-1", "rollout.engine=nosuch"),
    *("rollout.samples_per_prompt=0", "rollout.max_new_tokens=99999999999999999999"),
    *("lora.rank=-1", "lora.rank=x", "seed=\x1b[31m", f"seed={NOT_UTF8}", f"{'a.' * 3000}b=1"),
    "seed=" + "[" * 3000,
]
MODELS = [
    *("nosuch", "models:/", "models:/nosuch@champion", "models:/nosuch/99", "models:/a/b/c/d"),
    *("models:/nosuch/x", "models:/nosuch@", "", " ", "../mine", "/", "a b", "mine@v1", "'", "%"),
    *("models:/../../etc/1", "good.jsonl", "empty-folder", "embedded:nosuch", LONG, NOT_UTF8),
    *("two\nlines", "runs:/nosuch/model"),
]
RUNS = [
    *("nosuch", "../../etc", "/etc/passwd", "", " ", ".", "..", "*", "models:/nosuch/1", "[", "'"),
    *("models:/", "good.jsonl", LONG, NOT_UTF8, "two\nlines", "\x1b[31mred"),
]
NUMBERS = ["x", "", "-1", "1.5", "nan", "1e3", "²", "99999999999999999999", "0x10"]
SMALL_NUMBERS = [one for one in NUMBERS if len(one) < 9]
"""For parameters in which any number may be meant, however large."""
TARGETS = [
    *("good.jsonl", "good.jsonl/below", "full", "", "/dev/full/x", "/proc/nosuch/x", "loop", LONG),
    *("pipe.jsonl", "/"),
]
KINDS: dict[str, list[str]] = {
    "paths": ROWS,
    "served_model": [],
    "step": NUMBERS,
    "limit": SMALL_NUMBERS,
    "sort": ["nosuch", ""],
    "track": [],
    "group": [],
    "grep": [],
    "held_out": ["nothing.jsonl", "cut.parquet", "", "binary.jsonl"],
    "source": ROWS,
    "corpus": [one for one in ROWS if "://" not in one and one != "pipe.jsonl"],
    "uri": ["", "nothing.jsonl"],
    "recipe": RECIPES,
    "overrides": OVERRIDES,
    "other": RECIPES,
    "assignments": ["", "seed", "=1", "seed=1,", "seed=x,1", "a.b=1,2", "seed=", "training={,}"],
    "model": MODELS,
    "against": ["nosuch", "", "models:/nosuch/1"],
    "name": ["nosuch", "", "a/b", LONG],
    "version": NUMBERS,
    "run": RUNS,
    "runs": RUNS,
    "port": [*NUMBERS, "70000"],
    "rows": [*NUMBERS, "0"],
    "seed": ["x", "", "1.5"],
    "max_prompt_length": [*SMALL_NUMBERS, "0"],
    "oracle_rows": SMALL_NUMBERS,
    "format": ["nosuch", "", "JSON"],
    "schema": ["nosuch", ""],
    "to": TARGETS,
    "target": [*TARGETS, "written.xlsx", "written", NOT_UTF8],
    "folder": TARGETS,
    "written_as": ["nosuch", ""],
    "mapped": ["", "=", "a", "prompt=", "prompt=a|nosuch", "prompt=no_column"],
    "env": ["", "x", ":", "=", "os:path", "os:nosuch", "nowhere:X", "gsm8k=os:path", "a b:c d"],
    "env_class": ["nosuch", ""],
    "prompt_key": [],
    "media_root": ["nothing", "good.jsonl"],
    "profile": ["nosuch", "", "../profiles/cpu", LONG],
    "config": [*RECIPES, "good.yaml", "no-rows.yaml"],
    "input_dir": ["good.jsonl", "loop"],
    "output_dir": ["good.jsonl", "good.jsonl/below", "full"],
    "host": ["", "nosuch.invalid", "999.1.1.1", "a b", LONG],
    "device": ["nosuch", "cuda:99", "", "cuda:-1"],
    "reason": [],
    "max_rows": [*NUMBERS, "0"],
    "max_waiting": ["x", "", "-1", "1.5", "0"],
    "tool_format": ["nosuch", ""],
    "repository": ["", "a/b/c", "/", "..", "a b/c", LONG, NOT_UTF8],
    "revision": [],
    "lm_eval": [],
    "lm_eval_folder": [],
    "lm_eval_python": [],
    "numbers": ["nosuch", ""],
    "row": NUMBERS,
    "starter": ["nosuch", "", "..", LONG],
    "reply": [],
    "cron": ["nosuch", "", "99 * * * *", "* * *"],
    "max_tokens": [*SMALL_NUMBERS, "0"],
    "server": ["nosuch", "", "MLflow"],
    "nodes": [*NUMBERS, "0"],
    "devices": [*NUMBERS, "0"],
    "storage": ["", "s3://", "ftp://host/runs", "s3:/bucket", "runs", "~nobody-here/runs"],
    "image": [],
    "namespace": [],
    "mlflow": ["nosuch://x", "http://[", "sqlite:///here.db", ""],
    "accelerator": [],
    "out": ["good.jsonl/below", "full", "", "/dev/full/x", "/proc/nosuch/x", LONG, "/"],
}
"""What may be wrong with a parameter, by its name."""
PAGES = ["good.jsonl/below", "full", "", "/dev/full/x", "/proc/nosuch/x", LONG, "/"]
"""Where no file can be written; one that is there is replaced."""
OF_COMMAND: dict[tuple[str, str], list[str]] = {
    ("validate", "against"): ["nothing.jsonl", "cut.parquet", "", "binary.jsonl"],
    ("eval", "model"): [*MODELS, "mine@99", "http://[", "http://127.0.0.1:9/v1"],
    ("export", "model"): [*MODELS, "mine@99"],
    ("eval", "overrides"): ["=x", "[", "seed=text", "training=5", "data.eval=[nothing.jsonl]"],
    ("config show", "overrides"): ["=x", "[", "seed=text", "training=5", "algorithm.name=nosuch"],
    ("report", "to"): PAGES,
    ("compare", "to"): PAGES,
    ("data convert", "to"): ["nosuch", ""],
    **{
        (f"launch {kind}", "overrides"): ["=x", "[", "seed=text", "training=5", "rewards=[3]"]
        for kind in ("slurm", "k8s", "skypilot")
    },
    ("serve-demo", "host"): [],
    ("serve-demo", "against"): [],
    ("serve", "host"): [],
    ("envs try", "rows"): [one for one in ROWS if one != "cut.jsonl"],
    ("prep", "overrides"): ["=x", "[", "a.b.c=", "on_invalid=nosuch", "stage=", "num_workers=-1"],
}
"""The same, where a command differs from the others; a demo loads its models before it listens,
and one row is tried that stands before the end of a file."""
ENVIRONMENTS: list[tuple[list[str], dict[str, str]]] = [
    *(
        (["validate", "good.jsonl"], {"RL_TRAIN_HOME": home})
        for home in ("good.jsonl", "good.jsonl/below", "/proc/nosuch", "loop", LONG, "pipe.jsonl")
    ),
    (["lineage", "nosuch"], {"RL_TRAIN_HOME": "odd ?#%20 home"}),
    (["lineage", "nosuch"], {"RL_TRAIN_HOME": "~nobody-here/home"}),
    (["lineage", "nosuch"], {"RL_TRAIN_HOME": NOT_UTF8}),
    (["lineage", "nosuch"], {"RL_TRAIN_HOME": "s3://bucket/home"}),
    (["lineage", "nosuch"], {"MLFLOW_TRACKING_URI": "nosuch://x"}),
    (["lineage", "nosuch"], {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}),
    (["lineage", "nosuch"], {"MLFLOW_TRACKING_URI": "http://["}),
    (["lineage", "nosuch"], {"MLFLOW_TRACKING_URI": "sqlite:////nowhere/at/all.db"}),
    (["lineage", "nosuch"], {"MLFLOW_TRACKING_URI": "sqlite:///binary.rows"}),
    (["data", "announce", "a.jsonl"], {"PREFECT_API_URL": "http://127.0.0.1:9/api"}),
    (["data", "announce", "a.jsonl"], {"PREFECT_API_URL": "nonsense"}),
    (["deploy"], {"PREFECT_API_URL": "http://127.0.0.1:9/api"}),
    (["deploy"], {"PREFECT_API_URL": "nonsense"}),
    (["deploy"], {"PREFECT_API_URL": "http://["}),
    (["validate", "whole.parquet"], {"RAY_ADDRESS": "127.0.0.1:9"}),
    (["validate", "whole.parquet"], {"RAY_ADDRESS": "nonsense"}),
    (["run", "no-rows.yaml"], {}),
    (["run", "no-rows.yaml", "--dry-run"], {}),
    (["run", "bad-rows.yaml", "--dry-run"], {}),
    (["run", "good.yaml", "model.path=./nowhere"], {}),
    (["run", "good.yaml", "data.eval=[{path: nothing.jsonl}]"], {}),
    (["run", "smoke/mpo", "data.train=[nothing.jsonl]"], {}),
    (["run", "smoke/diffusion", "data.eval=[nothing.jsonl]"], {}),
    (["open", "mlflow"], {}),
    (["open", "mlflow"], {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}),
    (["status"], {"RL_TRAIN_HOME": "broken-home"}),
    (["down"], {"RL_TRAIN_HOME": "broken-home"}),
    (["lineage", "nosuch", "1"], {"RL_TRAIN_HOME": "broken-home"}),
    (["report", "mine"], {"RL_TRAIN_HOME": "broken-home"}),
    (["status", "--env"], {"RL_TRAIN_HOME": "broken-home"}),
    (["run", "unset.yaml", "--dry-run"], {"NO_SUCH_VARIABLE": ""}),
    (["run", "smoke/text", "--dry-run"], {"SMOKE_MODEL": "nowhere/to/be"}),
    (["prep", "-c", "mpo", "--dry-run"], {"OMNI3_MMPR_PUBLIC_RAW": "good.jsonl"}),
]
"""Sound command lines in a damaged environment, and real runs of what is not there."""

UNKNOWN = [
    ["nosuch"],
    ["vaildate", "good.jsonl"],
    [""],
    ["--nosuch"],
    ["data", "nosuch"],
    ["run", "good.yaml", "--dry-rum"],
    ["run", "good.yaml", "--profile"],
    [NOT_UTF8],
    ["validate", "good.jsonl", "--format"],
    ["compare"],
    ["promote", "mine"],
]
"""Commands and options that do not exist, and options without their value."""


@dataclass(frozen=True)
class Line:
    """A damaged command line."""

    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    damage: str = ""
    """The damaged value, which the message names; empty: no one value."""
    parameter: str = ""
    """Name of the damaged parameter."""


def lines() -> Iterator[Line]:
    """Yield every damaged command line."""
    for name, command in _commands(typer.main.get_command(app)):
        for parameter in command.params:
            for damage in _damages(name, parameter):
                arguments = _arguments(name, command, parameter, damage)
                yield Line(arguments, damage=damage, parameter=parameter.name)
    for arguments in UNKNOWN:
        yield Line(arguments)
    for arguments, environment in ENVIRONMENTS:
        yield Line(arguments, environment)


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, below in command.commands.items():
        yield from _commands(below, (*path, name))


def _damages(command: str, parameter: Any) -> list[str]:
    is_switch = getattr(parameter, "is_flag", False) or getattr(parameter, "hidden", False)
    if is_switch:
        return []
    return OF_COMMAND.get((command, parameter.name), KINDS[parameter.name])


def _arguments(name: str, command: Any, damaged: Any, damage: str) -> list[str]:
    """Return the sound arguments of a command with one of them replaced; options come first, so
    that a value that begins with a dash is one."""
    options: list[str] = []
    positional: list[str] = []
    for parameter in command.params:
        values = SOUND[name].get(parameter.name)
        if parameter is damaged:
            values = [damage]
            if parameter.name == "runs":
                values = [REGISTERED, damage]
        if values is None:
            continue
        if parameter.param_type_name == "argument":
            positional += values
        else:
            options += [parameter.opts[-1], *values]
    return [*name.split(), *options, "--", *positional]
