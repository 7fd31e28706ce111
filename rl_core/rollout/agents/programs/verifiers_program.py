"""Environments of the verifiers package: their tasks as rows, and their episodes as an agent's.

It runs in the interpreter that has verifiers, and imports nothing of this project but its
neighbours. Written for verifiers 0.4, whose environments are a taskset (data, rewards and tools)
and the seats that play it.
"""

import itertools
import json
import os
import sys
from importlib import import_module

CHAT = "rl_train_verifiers_chat"
"""Name by which verifiers finds the harness of the policy's seat."""
HUB_FORM = "a module or package that exports a Taskset in __all__"


def play(settings):
    """Return the function that plays a row. Args: settings: as `VerifiersEnv.Config` has them."""
    env, seat = _environment(settings)
    task_type = type(env.taskset).task_type()

    async def played(row, client):
        from verifiers.v1 import (  # pyright: ignore[reportMissingImports]
            EvalClientConfig,
            ModelContext,
            SamplingConfig,
        )

        asked = json.loads(row["extra_info"]["verifiers_task"])
        task = task_type(task_type.data_type().model_validate(asked), env.taskset.config.task)
        endpoint = EvalClientConfig(base_url=str(client.base_url), api_key_var="OPENAI_API_KEY")
        model = ModelContext(model="policy", client=endpoint, sampling=SamplingConfig())
        async with env.serving():
            episode = await env.run_episode(task, model)
        return _result(episode, seat)

    return played


def rows(settings):
    """Yield the environment's tasks as rows. Args: settings: also `wanted`, how many tasks to read,
    None for all."""
    env, _ = _environment(settings)
    taskset, wanted = env.taskset, settings["wanted"]
    if wanted is None and not taskset.bounded:
        raise LookupError("the taskset has no end; say how many rows to make of it: size")
    speaks_first = _opens(env)
    for task in itertools.islice(taskset, wanted):
        data = task.data.model_dump(mode="json", exclude_none=True)
        if not data.get("prompt") and not speaks_first:
            raise LookupError(
                f"task {data.get('idx')} has no prompt, and nobody else opens the conversation; "
                "the taskset's data must have `prompt`"
            )
        yield _row(task, data)


def _row(task, data):
    prompt = data.get("prompt") or data.get("name") or f"task {data.get('idx')}"
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    messages = [{k: one[k] for k in ("role", "content")} for one in messages]
    if data.get("system_prompt"):
        messages = [{"role": "system", "content": data["system_prompt"]}, *messages]
    answer = data.get("answer")
    has_answer = isinstance(answer, (int, float)) or (isinstance(answer, str) and answer.strip())
    return {
        "prompt": messages,
        "reward_spec": {
            "method": "verifiers",
            # Without an answer the task's own rewards know what is right.
            "ground_truth": answer if has_answer else str(task.key),
        },
        "extra_info": {"index": data.get("idx"), "verifiers_task": json.dumps(data)},
        "key": task.key,
    }


def _environment(settings):
    """Return the environment, and the seat that the policy plays: its one free one."""
    from verifiers.v1.configs.agent import (  # pyright: ignore[reportMissingImports]
        agent_config_fields,
    )
    from verifiers.v1.utils.loaders import (  # pyright: ignore[reportMissingImports]
        env_config_type,
        load_environment,
        resolve_env_config,
        taskset_class,
    )

    # Servers of tools are processes that import their taskset again.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    sys.path.insert(0, os.path.dirname(__file__))
    sys.modules[CHAT] = import_module("verifiers_chat")
    name = settings["verifiers"]
    try:
        taskset_class(name)
    except (ModuleNotFoundError, AttributeError, TypeError) as error:
        raise LookupError(f"{name} is no environment of verifiers ({HUB_FORM}): {error}") from error
    given = dict(settings["env"])
    kind = env_config_type(name, given.get("id") or "")
    defaults = {k: v.default for k, v in kind.model_fields.items()}
    seats = list(agent_config_fields(kind.model_construct(**defaults)))
    free = [seat for seat in seats if not (given.get(seat) or {}).get("client")]
    if len(free) != 1:
        raise LookupError(
            f"{name} has the seats {', '.join(seats)}; the policy plays one, and the others need a "
            "model of their own: env: {seat: {model: …, client: {base_url: …}}}"
        )
    for seat in seats:
        taken = {"harness": {"id": CHAT}, "runtime": {"type": "subprocess"}}
        if seat in free and settings["max_turns"]:
            taken["max_turns"] = settings["max_turns"]
        given[seat] = taken | (given.get(seat) or {})
    given["taskset"] = {"id": name, **settings["args"]}
    return load_environment(resolve_env_config(given)), free[0]


def _opens(env):
    from verifiers.v1 import SingleAgentEnv  # pyright: ignore[reportMissingImports]

    # Only an environment with a `run` of its own can speak before the policy does.
    return type(env).run is not SingleAgentEnv.run


def _result(episode, seat):
    """Return the reward and the metrics of the policy's trace; raise what went wrong."""
    traces = [one for one in episode.traces if one.agent is not None and one.agent.name == seat]
    errors = [*episode.errors, *(error for one in traces for error in one.errors)]
    if errors:
        raise RuntimeError(f"{errors[-1].type}: {errors[-1].message}")
    if len(traces) != 1:
        raise RuntimeError(f"the episode has {len(traces)} conversations to train; one is right")
    trace = traces[0]
    if not trace.rewards:
        raise RuntimeError("the task gave no reward; it needs a method with @vf.reward")
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    if len(trace.rewards) > 1:
        metrics |= {name: one.value for name, one in trace.rewards.items() if one is not None}
    return {"reward": trace.reward, "metrics": metrics}
