import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from flows.reference.docstrings import about_field
from rl_core.data.read.recipe_files import validation_settings
from rl_core.envs import (
    BaseTextEnv,
    BaseTextEnvStepOutput,
    accepted_ground_truths,
    environments,
    make,
    register,
    registered,
)
from rl_core.envs import registration as registration_module
from rl_core.envs.registration import portable_options
from rl_core.envs.tools.shared import Shared
from rl_core.errors import EnvError, RecipeError
from rl_core.runs.recipes import load_recipe, parse_recipe
from tests.envs.outside import Calculator


class EchoEnv(BaseTextEnv):
    def __init__(self, env_config=None, extras=None, pay: float = 1.0) -> None:
        super().__init__(env_config, extras)
        self.pay = pay

    def step(self, action: str) -> BaseTextEnvStepOutput:
        return BaseTextEnvStepOutput(
            observations=[], reward=self.pay, done=True, metadata={"action": action}
        )


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
        "import sys; from rl_core.envs import registered; from rl_core.algorithms import "
        "algorithms;assert registered() and algorithms.names();heavy = {'torch', "
        "'reasoning_gym', 'numpy', 'sympy', 'transformers'} & set(sys.modules);assert not heavy, "
        "heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_recipe_names_a_class_by_target_and_it_takes_any_options() -> None:
    options = {
        "target": "tests.envs.outside:MultiplyEnv",
        "kwargs": {"reward": 0.5},
        "hint": "once more",
    }
    row = {"reward_spec": {"ground_truth": "6"}}
    env = make("multiply", options, row)
    first: Any = env.step("\\boxed{7}")
    assert first["observations"] == [{"role": "user", "content": "once more"}] and not first["done"]
    assert env.step("\\boxed{6}")["reward"] == 0.5  # type: ignore[index]
    with pytest.raises(EnvError, match="built in"):
        make("gsm8k", options, row)


def test_a_recipe_with_an_environment_of_its_own_is_accepted() -> None:
    values = load_recipe("smoke/text").model_dump(mode="json")
    values["environments"] = {"multiply": {"target": "tests.envs.outside:MultiplyEnv", "hint": "x"}}
    recipe = parse_recipe(values)
    assert validation_settings(recipe)["allowed_env_classes"]["multiply"] >= {"string", "number"}
    values["environments"] = {"multiply": {"target": "tests.envs.outside:NoEnv"}}
    with pytest.raises(RecipeError, match="NoEnv"):
        parse_recipe(values)
    values["environments"] = {"search": {"search_ulr": "x"}}
    with pytest.raises(RecipeError, match="did you mean 'search_url'"):
        parse_recipe(values)


def test_what_was_registered_here_is_found_in_workers(ray_cluster: None) -> None:
    import ray

    register("multiply", "tests.envs.outside:MultiplyEnv", kwargs={"reward": 2.0})
    options = portable_options({"gsm8k": {}, "multiply": {"hint": "h"}})

    @ray.remote(num_cpus=0)
    def reward_in_worker() -> float:
        from rl_core.envs import make as make_there

        env = make_there("multiply", options["multiply"], {"reward_spec": {"ground_truth": "6"}})
        return env.step("\\boxed{6}")["reward"]  # type: ignore[index]

    assert ray.get(reward_in_worker.remote()) == 2.0


def test_a_class_that_no_worker_could_import_is_refused_in_time() -> None:
    class LocalEnv(EchoEnv):
        pass

    register("local", LocalEnv)
    with pytest.raises(EnvError, match="put the class into a module"):
        portable_options({})


def test_tool_groups_know_their_tools_and_close_with_the_environment() -> None:
    group = Calculator()
    assert (group.get_name(), group.get_tool_names()) == ("Calculator", ["add", "negate"])
    assert group.get_tool_to_group_mapping() == {"add": "Calculator", "negate": "Calculator"}
    assert group.get_tool("secret") is None and group.execute_tool("add", 2, b=3) == 5
    with pytest.raises(EnvError, match=r"no tool 'secret' \(known: add, negate\)"):
        group.execute_tool("secret")
    env = EchoEnv()
    env.init_tool_groups([group])
    assert env._execute_tool("Calculator", "negate", [2]) == -2
    with pytest.raises(EnvError, match="no tool group 'Abacus'"):
        env._execute_tool("Abacus", "add", [1, 2])
    env.close()
    assert group.is_closed


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_multi_turn", "aime", "text2sql", "search", "lcb", "searchcode",
                                  "reasoning_gym", "geo3k", "multiple_choice", "rewrite", "open_ended",
                                  "exact_match"])  # fmt: skip
def test_every_built_in_environment_owns_its_config_and_names_its_truths(name: str) -> None:
    cls = environments.get(name)
    assert "Config" in vars(cls) and cls.Config.__doc__ and "ground_truth_kinds" in vars(cls)
    assert all(about_field(cls.Config, name) for name in cls.Config.model_fields)


def test_shared_resources_end_with_their_last_user() -> None:
    class Resource:
        def __init__(self, key: str) -> None:
            self.key, self.closed = key, 0

        def close(self) -> None:
            self.closed += 1

    shared: Shared[str, Resource] = Shared(Resource)
    first, second, other = shared.lease("a"), shared.lease("a"), shared.lease("b")
    assert first.value is second.value is not other.value
    resource = first.value
    first.release()
    first.release()
    assert resource.closed == 0
    del second
    assert resource.closed == 1, "a forgotten lease is released with its owner"
    shared.close()
    other.release()
    assert other.value.closed == 1


def test_what_skyrls_callers_put_among_the_options_is_taken() -> None:
    row = {"reward_spec": {"ground_truth": "5"}}
    env = make("gsm8k", {"env_class": "gsm8k", "log_requests": True, "max_turns": 2}, row)
    assert env.max_turns == 2
    with pytest.raises(EnvError, match="log_request: unknown key"):
        make("gsm8k", {"log_request": True}, row)
