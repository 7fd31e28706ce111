"""Episodes of an OpenEnv environment: the policy's replies are its actions, its rewards the reward.

It runs in the interpreter that has openenv, and imports nothing of this project. Written for
openenv 0.10.

How a reply becomes an action is in the environment's own schema: an action of one text field is the
reply itself; any other is a JSON object in the reply. A reply without one, or with one that the
server refuses, is answered by an error that the policy reads, and is worth 0.
"""

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

START_TIMEOUT_S = 60.0
"""Seconds in which a server that is started here has to answer."""
NO_CONTENT = ("done", "reward", "metadata")
"""Fields that every observation has; `metadata` is in every action, too."""
MCP_ACTIONS = ("Action", "CallToolAction", "ListToolsAction")
"""Titles of schemas that stand for calls of tools which the environment lists on request."""


def play(settings):
    """Return the function that plays a row. Args: settings: as `OpenEnvEnv.Config` has them."""
    from openenv import GenericEnvClient  # pyright: ignore[reportMissingImports]

    address = settings["openenv"]
    url = address.rstrip("/") if "://" in address else _served(address)
    known = {}

    async def played(row, client):
        if not known:
            known.update(_schema(url))
        reset = {**settings["reset"], **json.loads(row["extra_info"]["openenv_reset"])}
        async with GenericEnvClient(base_url=url, message_timeout_s=settings["timeout_s"]) as env:
            return await _Episode(settings, env, known["action"], client).played(reset)

    return played


class _Episode:
    """One episode: the conversation so far, and what each reply earned."""

    def __init__(self, settings, env, schema, client):
        self.settings, self.env, self.schema, self.client = settings, env, schema, client
        self.messages, self.rewards, self.num_refused = [], [], 0

    async def played(self, reset):
        """Play it. Returns: a reward per reply, and metrics."""
        result = await self.sent(self.env.reset(**reset))
        instructions = [self.settings["instructions"], await self.told_actions()]
        shown = [*(one for one in instructions if one), _text(result.observation)]
        self.messages.append({"role": "user", "content": "\n\n".join(shown)})
        given = []
        while not result.done and len(self.rewards) < self.settings["max_turns"]:
            reply = await self.reply()
            if reply is None:
                break
            action, problem = _action(reply, self.schema)
            if problem is None:
                stepped, problem = await self.step(action)
                if stepped is not None:
                    result = stepped
            if problem is not None:
                self.num_refused += 1
                self.rewards.append(0.0)
                answer = f"error: {problem}"
            else:
                given.append(result.reward)
                self.rewards.append(float(result.reward or 0.0))
                answer = _text(result.observation)
            self.messages.append({"role": "user", "content": answer})
        if given and all(one is None for one in given):
            raise RuntimeError("the environment gave no reward in any step")
        metrics = {"done": float(bool(result.done)), "refused_actions": float(self.num_refused)}
        return {"reward": self.rewards, "metrics": metrics}

    async def reply(self):
        """Return the policy's next reply; None where the conversation fills its context."""
        import openai

        try:
            answered = await self.client.chat.completions.create(
                model="policy", messages=self.messages
            )
        except openai.BadRequestError:
            if not self.rewards:
                raise
            return None
        said = answered.choices[0].message.content or ""
        self.messages.append({"role": "assistant", "content": said})
        return said

    async def step(self, action):
        """Act. Returns: the result, and what the server found wrong with the action."""
        try:
            return await self.env.step(action), None
        except RuntimeError as error:
            if "VALIDATION_ERROR" not in str(error):
                raise RuntimeError(_short(error)) from error
            return None, f"the action does not fit its schema: {json.dumps(_fields(self.schema))}"

    async def sent(self, waiting):
        """Return what the server answers to the first message, which begins the session."""
        try:
            return await waiting
        except RuntimeError as error:
            if "CAPACITY_REACHED" in str(error):
                raise RuntimeError(
                    f"the server takes no more sessions at once ({_short(error)}); set "
                    "concurrency of this environment to what it takes"
                ) from error
            raise RuntimeError(_short(error)) from error

    async def told_actions(self):
        """Return the sentence that says how to act; empty where the reply itself is the action."""
        if self.schema.get("title") in MCP_ACTIONS:
            listed = await self.env.step({"type": "list_tools"})
            tools = json.dumps(listed.observation.get("tools"))
            return (
                'Answer with one JSON object that calls a tool, {"tool_name": …, "arguments": '
                f"{{…}}}}. The tools are {tools}."
            )
        if _text_field(self.schema) is not None:
            return ""
        return f"Answer with one JSON object with the fields {json.dumps(_fields(self.schema))}."


def _fields(schema):
    """Return the fields of an action, each with its part of the schema."""
    return {k: v for k, v in (schema.get("properties") or {}).items() if k not in NO_CONTENT}


def _text_field(schema):
    """Return the name of an action's only field if it is a text; None for another action."""
    fields = _fields(schema)
    required = [name for name in schema.get("required") or () if name in fields]
    names = list(fields) if len(fields) == 1 else required
    if len(names) == 1 and fields[names[0]].get("type") == "string":
        return names[0]
    return None


def _action(reply, schema):
    """Return the action in a reply, and what is wrong with one that has none."""
    name = _text_field(schema)
    is_call = schema.get("title") in MCP_ACTIONS
    if name is not None and not is_call:
        return {name: reply.strip()}, None
    start = reply.find("{")
    if start < 0:
        return None, "the reply has no JSON object"
    try:
        action, _ = json.JSONDecoder().raw_decode(reply, start)
    except ValueError as error:
        return None, f"the reply has no valid JSON object ({error})"
    return {"type": "call_tool", **action} if is_call else action, None


def _text(observation):
    """Return an observation as text: its only text, or all its fields as JSON."""
    shown = {k: v for k, v in observation.items() if k not in NO_CONTENT}
    values = list(shown.values())
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(shown, ensure_ascii=False)


def _schema(url):
    try:
        with _opener(url).open(f"{url}/schema", timeout=30) as answer:
            return json.load(answer)
    except (OSError, ValueError) as error:
        raise ConnectionError(f"no OpenEnv server answers at {url}: {error}") from error


def _served(target):
    """Start the server of an application, `my_env.server.app:app`. Returns: its address."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    code = (
        "import ctypes, json, signal, sys\n"
        "sys.path[:0] = json.loads(sys.argv[3])\n"
        # It ends with this process, however that ends.
        "sys.platform == 'linux' and ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
        "import uvicorn\n"
        "uvicorn.run(sys.argv[1], host='127.0.0.1', port=int(sys.argv[2]), log_level='warning')\n"
    )
    said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server
    server = subprocess.Popen(
        [sys.executable, "-P", "-c", code, target, str(port), json.dumps(sys.path)],
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
    )
    pid = os.getpid()
    atexit.register(lambda: os.getpid() == pid and server.kill())
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        if server.poll() is not None:
            said.seek(0)
            told = said.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(f"the server {target} ended at once: {told[-1] if told else ''}")
        try:
            with _opener(url).open(f"{url}/schema", timeout=5):
                return url
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"the server {target} has no schema: {error}") from error
        except OSError:
            time.sleep(0.1)
    server.kill()
    raise RuntimeError(f"the server {target} did not answer within {START_TIMEOUT_S:g} s")


def _opener(url):
    # A proxy cannot reach this machine's own servers.
    is_here = urllib.parse.urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_here else []))


def _short(error):
    return str(error)[:300]
