"""Parts named in a recipe: a class that does not fit is refused when the recipe is loaded, in one
sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from rl_core.errors import RecipeError
from rl_core.parts import Backend, Family, Loop, Receives, Samples, Stack, Sync
from rl_core.parts.attributes import HasAttributes, attributes
from rl_core.parts.conformance import members
from rl_core.parts.of_recipe import REGISTRIES
from rl_core.runs.recipes import load_recipe
from rl_core.runs.run_folder import run_key
from rl_core.train.fsdp import FSDPBackend
from schemas.sections.parts import PARTS, without_unset_parts
from tests.command import rl_train
from tests.parts.examples import examples, page, write_examples

CONTRACTS = (Backend, Family, Stack, Samples, Receives, Sync, Loop)
DEDICATED = (
    "rollout.engine=dedicated",
    "placement.num_devices=2",
    "placement.rollout_devices=1",
)


class Slow(FSDPBackend):
    """A backend with an option."""

    class Config(FSDPBackend.Config):
        """Settings of `Slow`."""

        seconds: float = 1.0


class Muddled(FSDPBackend):
    """A backend that no stack can use."""

    save = None  # type: ignore[assignment]

    def backward(self, loss: Any) -> None:  # type: ignore[override]
        """Take no `last`."""

    def notes(self) -> list[str]:
        """Answer on every rank."""
        return []


class Stiff(FSDPBackend):
    """A backend that is built otherwise."""

    def __init__(self, bundle: Any) -> None:
        raise NotImplementedError


def refusal(*overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe("smoke/text", overrides)
    return str(caught.value)


def target(name: str) -> str:
    return f"{{target: '{__name__}:{name}'}}"


def test_every_part_of_a_recipe_has_a_registry():
    assert set(REGISTRIES) == set(PARTS)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("backend={target: 'no_such:Thing'}",),
            "backend: target 'no_such:Thing' cannot be imported (No module named 'no_such')",
        ),
        (("stack={target: 'os.path:join'}",), "stack.target: os.path:join is not a class"),
        (("engine={}",), "engine: give target (pkg.module:Class)"),
        (("backend={name: veomni}",), "unknown backend 'veomni' (known: fsdp)"),
        (
            (f"backend={{target: '{__name__}:Slow', second: 2}}",),
            "backend.second: unknown key (did you mean 'seconds'?)",
        ),
        (("backend.block_classes=[A]",), "backend.block_classes: unknown key"),
        (
            (f"trainer={target('Slow')}",),
            "is no Loop: it is built with (recipe, source_model, items) and rank_info, settings",
        ),
        (
            (f"backend={target('Muddled')}",),
            "Muddled is no Backend: notes has to be @distributed(collect=Collect.RANK_ZERO, "
            "execute=Execute.RANK_ZERO); backward(loss, *, last) is called, and backward does not "
            "take that (got an unexpected keyword argument 'last'); it has no method "
            "save(folder); docs/extending.md has the contract",
        ),
        (
            (f"backend={target('Stiff')}",),
            "it is built with (bundle, fsdp_cfg, optimizer_cfg, scheduler_cfg, lora_cfg, *, "
            "total_steps, seed, with_reference, ema_cfg) and rank_info, settings, which its "
            "__init__ does not take (too many positional arguments)",
        ),
        (
            ("sync={target: 'rl_core.distributed.weight_sync:WeightSync'}",),
            "sync: nothing is sent with rollout.engine: in_process",
        ),
        (
            ("engine={target: 'rl_core.rollout.engine:RolloutEngine'}", *DEDICATED),
            "is no Receives: it has no method weight_version()",
        ),
    ],
)
def test_a_part_that_does_not_fit_is_refused_with_the_reason(overrides: tuple[str, ...], said: str):
    message = refusal(*overrides)
    assert message.startswith("text.yaml: ")
    assert said in message
    assert "\n" not in message


def test_a_backend_is_asked_for_what_the_recipe_needs_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_examples(tmp_path, "plain_backend.py")
    monkeypatch.syspath_prepend(tmp_path)
    backend = "backend={target: 'plain_backend:PlainBackend'}"
    assert load_recipe("smoke/text", [backend]).backend == {"target": "plain_backend:PlainBackend"}
    averaged = refusal(backend, "ema_lora={}")
    assert "PlainBackend is no Averages: it has no method apply_eval_ema()" in averaged
    assert "is no Probes: it has no method probe(dtype, *, averaged)" in refusal(
        backend, *DEDICATED
    )
    del sys.modules["plain_backend"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Engine(\n", "cannot be imported (SyntaxError: '(' was never closed"),
        ("raise RuntimeError('no key')\n", "cannot be imported (RuntimeError: no key)"),
        ("class Engine:\n    pass\n", "is no Samples: it has no method rollout(prompts, *options)"),
    ],
)
def test_a_module_that_is_not_ready_is_the_users_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
):
    (tmp_path / "half_written.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert said in refusal("engine={target: 'half_written:Engine'}")
    sys.modules.pop("half_written", None)


def test_options_that_would_not_be_checked_are_refused(monkeypatch: pytest.MonkeyPatch):
    class Loose(BaseModel):
        """Takes any key."""

    monkeypatch.setattr(Slow, "Config", Loose)
    assert "Slow does not derive from rl_core.runtime.registry:PluginConfig" in refusal(
        f"backend={target('Slow')}"
    )


@pytest.mark.slow
def test_a_dry_run_refuses_a_wrong_target_with_exit_code_2(tmp_path: Path):
    done = rl_train(tmp_path, "run", "smoke/text", "--dry-run", "backend={target: 'no_such:Thing'}")
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "target 'no_such:Thing' cannot be imported" in done.stdout + done.stderr


def test_parts_are_in_a_runs_identity_where_they_are_named():
    recipe = load_recipe("smoke/text")
    assert set(PARTS).isdisjoint(without_unset_parts(recipe.model_dump(mode="json")))
    named = load_recipe("smoke/text", ["backend={name: fsdp}"])
    assert run_key(named, "cache") != run_key(recipe, "cache")


def test_the_pages_tables_name_every_member_of_the_contracts():
    text = page()
    for contract in CONTRACTS:
        names = [*members(contract), *attributes(contract)]
        assert [name for name in names if name not in text] == [], contract.__name__


def test_an_attribute_that_a_part_never_sets_is_named():
    class Empty:
        """A part without attributes."""

    with pytest.raises(RecipeError, match=r"backend\.target: .*Empty sets no bundle, policy"):
        HasAttributes(Empty(), Backend, "backend")


def test_a_backend_of_some_seventy_lines_is_enough():
    lines = [line for line in examples()["plain_backend.py"].splitlines() if line.strip()]
    code = [line for line in lines if not line.startswith(("import", "from"))]
    assert len(code) <= 75
