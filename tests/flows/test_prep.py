"""`rl-train prep`, `rl-train data make-fixture`, and the flow behind the deployments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rl_core.builtin.data.make_fixture import make_fixture
from rl_core.data.stages.run import stage_names
from rl_core.runtime.home import Home
from rl_core.tracking.artifacts import resolve
from tests.command import REPOSITORY, rl_train
from tests.e2e.prefect_api import PrefectApi


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("cli")
    done = rl_train(folder / "home", "data", "make-fixture", str(folder / "fixture"), "--rows", "8")
    assert done.returncode == 0, done.stderr
    assert "rl-train prep -c vision --input-dir" in done.stdout
    return {name: folder / "fixture" / name / "raw" for name in stage_names()}


@pytest.mark.slow
def test_prep_builds_registers_and_then_hits_without_mlflow(
    raw: dict[str, Path], tmp_path: Path
) -> None:
    where = ("--input-dir", str(raw["vision"]), "--output-dir", str(tmp_path / "out"))
    first = rl_train(tmp_path / "home", "prep", "-c", "vision", *where)
    assert first.returncode == 0, first.stderr
    assert "vision built: first preparation of vision" in first.stdout
    assert "art://omni3/rl/vision/data@v1" in first.stdout
    assert "unpack images: 8" in first.stderr, "progress is shown"
    code = (
        f"import sys; from flows.cli import app\napp(['prep', '-c', 'vision', *{where!r}], "
        "standalone_mode=False)\nprint([name for name in ('mlflow', 'pandas', 'pyarrow', "
        "'prefect', 'torch', 'ray') if name in sys.modules])"
    )
    second = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env={**os.environ, "RL_TRAIN_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "vision hit: cached: nothing changed since 20" in second.stdout, second.stderr
    assert second.stdout.splitlines()[-1] == "[]", "a hit imports nothing heavy"


def test_dry_run_says_hit_or_miss_and_names_the_changed_file(
    raw: dict[str, Path], tmp_path: Path
) -> None:
    own = tmp_path / "raw"
    own.mkdir()
    for path in raw["vision"].iterdir():
        (own / path.name).write_bytes(path.read_bytes())
    where = ("--input-dir", str(own), "--output-dir", str(tmp_path / "out"), "--no-register")
    dry = ("prep", "-c", "vision", "--dry-run", *where)
    before = rl_train(tmp_path / "home", *dry)
    assert "miss: first preparation of vision" in before.stdout
    assert not (tmp_path / "out").exists()
    assert rl_train(tmp_path / "home", "prep", "-c", "vision", *where).returncode == 0
    assert "hit: cached: nothing changed since" in rl_train(tmp_path / "home", *dry).stdout
    archive = own / "images.zip"
    archive.write_bytes(archive.read_bytes() + b"x")
    after = rl_train(tmp_path / "home", *dry)
    assert after.stdout.splitlines()[-1] == "miss: images.zip changed"
    for line in (
        "source_uri: hf://OpenGVLab/MMPR-Tiny",
        f"output    {tmp_path / 'out'}",
        "art://omni3/rl/vision/data ->",
    ):
        assert line in after.stdout
    assert "MiB  sha256 " in after.stdout, "sizes and digests of the inputs"


def test_dry_run_without_raw_files_says_what_would_be_fetched(tmp_path: Path) -> None:
    where = ("--input-dir", str(tmp_path / "none"), "--output-dir", str(tmp_path / "out"))
    done = rl_train(tmp_path / "home", "prep", "-c", "vision", "--dry-run", *where)
    assert done.stdout.splitlines()[-1] == (
        "miss: missing images.zip, mmpr_tiny.parquet: "
        f"hf://OpenGVLab/MMPR-Tiny would be fetched into {tmp_path / 'none'} first"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prep", "-c", "visoin"], "unknown stage 'visoin' (did you mean 'vision'?)"),
        (["prep"], "name a stage: rl-train prep -c diffusion|mpo|text|vision"),
        (
            ["prep", "-c", "vision", "preview_row=1"],
            "preview_row: unknown key (did you mean 'preview_rows'?)",
        ),
        (
            ["prep", "-c", "vision", "source_uri=null"],
            "missing images.zip, mmpr_tiny.parquet; put them there",
        ),
    ],
)
def test_what_a_person_can_put_right_is_one_message(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = rl_train(
        tmp_path,
        *arguments,
        *(["--input-dir", str(tmp_path / "none")] if len(arguments) > 3 else []),
    )
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_every_stage_has_a_deployment() -> None:
    document = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
    prepared = {
        entry["name"]: entry["parameters"]["stage"]
        for entry in document["deployments"]
        if entry["entrypoint"] == "flows/rl_prepare.py:rl_prepare"
    }
    assert prepared == {name: name for name in stage_names()}
    assert set(stage_names()) == {"mpo", "text", "vision", "diffusion"}


FLOW = """
import sys
from flows.rl_prepare import rl_prepare
raw, out = sys.argv[1:]
for _ in range(2):
    receipt = rl_prepare("text", ["val_fraction=0.3"], raw, out)
    print("outcome", "hit" if receipt.hit else "built", receipt.run_hash)
"""


@pytest.mark.slow
def test_the_flow_prepares_registers_and_shows_what_it_did(
    prefect_harness: None, tmp_path: Path
) -> None:
    from prefect.settings import PREFECT_API_URL

    url, home = PREFECT_API_URL.value(), Home(tmp_path / "home")
    folders = make_fixture(tmp_path / "fixture", num_rows=6)
    done = subprocess.run(
        [sys.executable, "-c", FLOW, str(folders["text"]), str(tmp_path / "out")],
        cwd=REPOSITORY,
        env={**os.environ, "RL_TRAIN_HOME": str(home.root), "PREFECT_API_URL": str(url)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    outcomes = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("outcome")]
    assert [state for state, _ in outcomes] == ["built", "hit"], done.stderr
    found = resolve(home.mlflow_uri, "art://omni3/rl/text/data@latest")
    assert (found.version, found.path) == (1, tmp_path / "out" / "manifest.json")
    assert {run_hash for _, run_hash in outcomes} == {found.run_hash}
    shown = {"artifacts": {"key": {"any_": ["prepared-text", "prepare-text"]}}}
    keys = {artifact["key"] for artifact in PrefectApi(str(url)).post("artifacts/filter", shown)}
    assert keys == {"prepared-text", "prepare-text"}


def test_the_documented_commands_run_as_written(tmp_path: Path) -> None:
    section = (REPOSITORY / "docs" / "data.md").read_text().partition("## Preparation")[2]
    commands = [
        line for line in section.partition("```bash\n")[2].partition("```")[0].splitlines() if line
    ]
    assert len(commands) == 6
    environment = {
        **os.environ,
        "RL_TRAIN_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(REPOSITORY),
    }
    for command in commands:
        program, *arguments = command.split()
        assert program == "rl-train"
        # Registration is tested above; here it would only cost time.
        options = ["--no-register"] if arguments[0] == "prep" else []
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments, *options],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("hit: cached: nothing changed since ")
    assert {path.name for path in (tmp_path / "prepared").iterdir()} >= {
        "vision",
        "mpo",
        "text",
        "diffusion",
    }
