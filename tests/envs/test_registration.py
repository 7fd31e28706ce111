import subprocess
import sys
from collections.abc import Iterator

import pytest

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, accepted_ground_truths, make, register, registered
from rl_core.envs import registration as registration_module
from rl_core.errors import EnvError


class EchoEnv(BaseTextEnv):
    def __init__(self, env_config=None, extras=None, pay: float = 1.0) -> None:
        super().__init__(env_config, extras)
        self.pay = pay

    def step(self, action: str) -> BaseTextEnvStepOutput:
        return BaseTextEnvStepOutput(observations=[], reward=self.pay, done=True, metadata={"action": action})


@pytest.fixture(autouse=True)
def _no_leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registration_module, "_specs", {})
    yield


def test_a_registered_class_is_made_with_its_kwargs() -> None:
    register("echo", EchoEnv, kwargs={"pay": 0.5})
    register("echo_by_path", f"{__name__}:EchoEnv")
    assert make("echo").step("hi")["reward"] == 0.5  # type: ignore[index]
    assert make("echo", pay=2.0).step("hi")["reward"] == 2.0  # type: ignore[index]
    assert make("echo_by_path").step("hi")["reward"] == 1.0  # type: ignore[index]
    assert {"echo", "echo_by_path", "gsm8k", "reasoning_gym"} <= set(registered())


def test_an_import_path_needs_no_registration() -> None:
    assert type(make(f"{__name__}:EchoEnv", {"max_turns": 3})).__name__ == "EchoEnv"


def test_an_id_cannot_be_taken_twice() -> None:
    register("echo", EchoEnv)
    for taken in ("echo", "gsm8k"):
        with pytest.raises(EnvError, match="already registered"):
            register(taken, EchoEnv)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("gsm8", "did you mean 'gsm8k'"),
        ("zzzz", "known: aime, .*text2sql"),
        ("no.module:Env", "cannot be imported"),
    ],
)
def test_an_unknown_id_names_the_known_ones(env_id: str, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make(env_id)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(EnvError, match="max_turns"):
        make("reasoning_gym", {"max_turn": 2})


def test_ground_truth_kinds_are_known_without_a_row() -> None:
    register("echo", EchoEnv)
    kinds = accepted_ground_truths()
    assert kinds["gsm8k"] == {"string", "number", "list"} and kinds["echo"] >= {"test_cases"}


@pytest.mark.parametrize(
    ("extras", "turns"),
    [
        ({}, 4), ({"extra_info": {"max_turns": 5}}, 5), ({"max_turns": 6, "extra_info": {"max_turns": 5}}, 6),
        ({"max_turns": float("nan"), "extra_info": {"max_turns": 5.0}}, 5), ({"extra_info": None}, 4),
    ],
)  # fmt: skip
def test_the_rows_max_turns_wins_over_the_config(extras: dict, turns: int) -> None:
    assert EchoEnv({"max_turns": 4}, extras).max_turns == turns


@pytest.mark.parametrize("turns", [0, 1.5, "5", True])
def test_a_senseless_max_turns_is_refused(turns: object) -> None:
    with pytest.raises(EnvError, match="max_turns"):
        EchoEnv({}, {"max_turns": turns})


def test_metrics_aggregate_to_means_over_those_who_report() -> None:
    assert EchoEnv.aggregate_metrics([{"a": 1.0}, {"a": 3.0, "b": 5.0}, {}]) == {"a": 2.0, "b": 5.0}


def test_discovery_imports_nothing_heavy() -> None:
    code = (
        "import sys; from rl_core.envs import registered; from rl_core.algorithms import algorithms;"
        "assert registered() and algorithms.names();"
        "heavy = {'torch', 'reasoning_gym', 'numpy', 'sympy', 'transformers'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
