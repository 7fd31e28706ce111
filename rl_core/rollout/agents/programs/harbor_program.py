"""Episodes of Harbor's task folders: the policy runs commands in a sandbox, then the task's tests
say what that is worth.

Unlike the other programs here it runs in this project's own interpreter, whose sandboxes it uses.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openai

    from rl_core.envs.others.harbor_tasks import HarborTask
    from rl_core.envs.tools.places.sandbox_choice import SandboxChoice
    from rl_core.envs.tools.shell import Ran, Shell

BLOCK = re.compile(r"```(?:bash|sh|shell)\s*\n(.*?)```", re.DOTALL)
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in the shell of the task and return what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    },
}
LOGS, TESTS = "/logs", "/tests"
REWARDS = f"{LOGS}/verifier"


def play(settings: dict[str, Any]) -> Callable[..., Awaitable[dict[str, object]]]:
    """Return the function that plays a row.

    Args: settings: as `HarborEnv.Config` has them. Raises: MachineLacks when the sandbox that they
    name cannot run here.
    """
    from pydantic import TypeAdapter

    from rl_core.envs.others.harbor_tasks import read_task
    from rl_core.envs.tools import bubblewrap
    from rl_core.envs.tools.places import container
    from rl_core.envs.tools.places.sandbox_choice import SandboxChoice, container_of

    place = TypeAdapter(SandboxChoice).validate_python(settings["sandbox"])
    named = container_of(place)
    if named is None:
        bubblewrap.require()
    else:
        container.require_program(named[0])

    async def played(row: dict[str, Any], client: openai.AsyncOpenAI) -> dict[str, object]:
        task = read_task(Path(settings["harbor"]) / row["extra_info"]["harbor_task"])
        shell = await asyncio.to_thread(_started, place, task)
        if named is not None:
            # The image has both, also where a Dockerfile names them by variables.
            task = replace(task, workdir="", env={})
        try:
            num_commands = await _work(settings, task, shell, row["prompt"], client)
            reward, metrics = await asyncio.to_thread(_verdict, task, shell)
        finally:
            shell.close()
        return {"reward": reward, "metrics": {**metrics, "commands": num_commands}}

    return played


def _started(place: SandboxChoice, task: HarborTask) -> Shell:
    """Return the shell of a task, with its files."""
    from rl_core.envs.tools.places import container
    from rl_core.envs.tools.places.sandbox_choice import container_of
    from rl_core.envs.tools.shell import Shell

    environment = task.folder / "environment"
    if (named := container_of(place)) is not None:
        image = task.image
        if image is None and (environment / "Dockerfile").is_file():
            image = container.build(named[0], environment)
        return Shell(place, (), image)
    copied = {"/" + at.split("/")[1] for _, at in task.copies}
    folders = {"/" + task.workdir.split("/")[1], LOGS, TESTS, *copied} - {"/tmp"}
    shell = Shell(place, sorted(folders))
    shell.run(f"mkdir -p {task.workdir}", cwd="/", env={}, timeout_s=10)
    for source, at in task.copies:
        path = environment / source
        if path.is_dir():
            shell.put(path, at)
        else:
            shell.write(at, path.read_bytes(), path.stat().st_mode & 0o777)
    return shell


async def _work(
    settings: dict[str, Any],
    task: HarborTask,
    shell: Shell,
    prompt: Sequence[Mapping[str, object]],
    client: openai.AsyncOpenAI,
) -> int:
    """Let the policy run commands. Returns: how many it ran."""
    messages: list[Any] = [dict(one) for one in prompt]
    num_commands = 0
    offered: dict[str, Any] = {"tools": [TOOL]} if settings["calls"] == "tools" else {}
    timeout_s = min(settings["command_timeout_s"], task.agent_timeout_s)

    async def done(command: str) -> str:
        ran = await asyncio.to_thread(
            shell.run, command, cwd=task.workdir, env=task.env, timeout_s=timeout_s
        )
        return _told(ran, timeout_s, settings["max_answer_characters"])

    for _ in range(settings["max_turns"]):
        answered = await client.chat.completions.create(
            model="policy", messages=messages, **offered
        )
        said = answered.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if said.tool_calls:
            for call in said.tool_calls:
                command = _command(getattr(call, "function", None))
                num_commands += command is not None
                text = (
                    await done(command)
                    if command is not None
                    else ('error: call bash with {"command": …}')
                )
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
            continue
        block = BLOCK.search(said.content or "")
        if block is None:
            break
        num_commands += 1
        messages.append({"role": "user", "content": await done(block.group(1))})
    return num_commands


def _command(function: Any) -> str | None:
    try:
        command = json.loads(function.arguments)["command"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return command if function.name == "bash" and isinstance(command, str) else None


def _told(ran: Ran, timeout_s: float, most: int) -> str:
    """Return what the policy reads of a command."""
    text = ran.output
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    if ran.timed_out:
        return f"{text}\n(ended after {timeout_s:g} s)"
    return text if text.strip() and not ran.code else f"{text}(exit code {ran.code})"


def _verdict(task: HarborTask, shell: Shell) -> tuple[float, dict[str, float]]:
    """Run the tests. Returns: the reward, and other numbers of theirs."""
    # What the policy left running, and what it left in these folders, may not change the verdict.
    shell.end_others()
    for folder in (LOGS, TESTS, REWARDS):
        shell.empty(folder)
    shell.put(task.folder / "tests", TESTS)
    ran = shell.run(
        f"bash {TESTS}/test.sh",
        cwd=task.workdir,
        env=task.env,
        timeout_s=task.verifier_timeout_s,
    )
    # So may no program of the policy's that the tests started.
    shell.end_others()
    if ran.timed_out:
        raise RuntimeError(
            f"task {task.name}: tests/test.sh took longer than {task.verifier_timeout_s:g} s"
        )
    text, as_json = shell.read(f"{REWARDS}/reward.txt"), shell.read(f"{REWARDS}/reward.json")
    try:
        if as_json is not None:
            numbers = {name: float(value) for name, value in json.loads(as_json).items()}
            reward = numbers.pop("reward", None)
            if reward is None:
                reward = sum(numbers.values()) / len(numbers)
            return reward, numbers
        if text is not None:
            return float(text), {}
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise RuntimeError(f"task {task.name}: its reward cannot be read: {error}") from error
    raise RuntimeError(
        f"task {task.name}: tests/test.sh wrote no {REWARDS}/reward.txt or reward.json; it ended "
        f"with exit code {ran.code} and printed {ran.output.strip()[-300:]!r}"
    )
