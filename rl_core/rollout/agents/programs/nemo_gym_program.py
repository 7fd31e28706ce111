"""Episodes of a NeMo Gym resources server: it offers tools, and its verdict is the reward.

The protocol is that of NeMo Gym's public source (`base_resources_server.py` and the simple agent):
`POST /seed_session` with the row opens a session, which cookies name; a call of a function is
`POST /<function>` with its arguments; `POST /verify` takes the row with all outputs in the form of
OpenAI's Responses and answers with `reward`. An answer with `mask_sample` is no verdict.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx
    import openai
    from openai.types.chat import ChatCompletionMessage
    from openai.types.chat.chat_completion_message_function_tool_call import Function


def play(settings: dict[str, Any]) -> Callable[..., Awaitable[dict[str, object]]]:
    """Return the function that plays a row. Args: settings: as `NemoGymEnv.Config` has them."""

    async def played(row: dict[str, Any], client: "openai.AsyncOpenAI") -> dict[str, object]:
        import httpx

        # A proxy cannot reach this machine's own servers.
        at = settings["nemo_gym"].rstrip("/")
        is_here = httpx.URL(at).host in ("127.0.0.1", "localhost", "::1")
        async with httpx.AsyncClient(
            timeout=settings["timeout_s"], trust_env=not is_here, headers=settings["headers"]
        ) as http:
            source = json.loads(row["extra_info"]["nemo_gym_row"])
            return await _Episode(settings, at, http, client, source).played(row["prompt"])

    return played


class _Episode:
    """One session with the server."""

    def __init__(
        self,
        settings: dict[str, Any],
        at: str,
        http: "httpx.AsyncClient",
        client: "openai.AsyncOpenAI",
        source: dict[str, Any],
    ) -> None:
        self.settings, self.at, self.http, self.client = settings, at, http, client
        self.source = source
        self.outputs: list[dict[str, Any]] = []
        self.params = source["responses_create_params"]

    async def played(self, prompt: Sequence[Mapping[str, object]]) -> dict[str, object]:
        """Play it. Returns: the reward, and the numbers of the verdict."""
        (await self.post("seed_session", self.source)).raise_for_status()
        messages: list[Any] = [dict(one) for one in prompt]
        num_calls = 0
        tools = [_chat_tool(one) for one in self.params.get("tools") or ()]
        asked: dict[str, Any] = {"tools": tools} if tools else {}
        for _ in range(self.settings["max_turns"]):
            answered = await self.client.chat.completions.create(
                model="policy", messages=messages, **asked
            )
            said = answered.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            self.heard(said)
            if not said.tool_calls:
                break
            for call in said.tool_calls:
                num_calls += 1
                result = await self.called(call.function)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
                self.outputs.append(
                    {"type": "function_call_output", "call_id": call.id, "output": result}
                )
        return await self.verdict(num_calls)

    def heard(self, said: "ChatCompletionMessage") -> None:
        """Keep a reply in the form of Responses."""
        number = len(self.outputs)
        if said.content:
            part = {"type": "output_text", "text": said.content, "annotations": []}
            kept = {"id": f"msg_{number}", "type": "message", "role": "assistant"}
            self.outputs.append(kept | {"status": "completed", "content": [part]})
        for call in said.tool_calls or ():
            asked: Function = call.function  # pyright: ignore[reportAttributeAccessIssue]
            kept = {"type": "function_call", "call_id": call.id, "name": asked.name}
            self.outputs.append(kept | {"arguments": asked.arguments})

    async def called(self, function: "Function") -> str:
        """Return what a tool answers, or what is wrong with the call: the policy reads either."""
        known = {one.get("name") for one in self.params.get("tools") or ()}
        if function.name not in known:
            return f"error: there is no tool {function.name!r}"
        try:
            arguments = json.loads(function.arguments or "{}")
        except ValueError as error:
            return f"error: the arguments are no JSON ({error})"
        answer = await self.post(function.name, arguments)
        if answer.status_code >= 500:
            answer.raise_for_status()
        return answer.text

    async def verdict(self, num_calls: int) -> dict[str, object]:
        """Ask for the reward. Raises: RuntimeError where the server says that it is none."""
        response = {
            "id": "resp_0",
            "created_at": time.time(),
            "model": "policy",
            "object": "response",
            "output": self.outputs,
            "parallel_tool_calls": self.params.get("parallel_tool_calls", True),
            "tool_choice": self.params.get("tool_choice", "auto"),
            "tools": self.params.get("tools") or [],
        }
        answer = await self.post("verify", {**self.source, "response": response})
        answer.raise_for_status()
        told = answer.json()
        if not isinstance(told.get("reward"), (int, float)):
            raise RuntimeError(f"/verify answered without a reward: {str(told)[:200]}")
        if told.get("mask_sample"):
            why = told.get("failure_reason") or told.get("failure_kind") or "mask_sample"
            raise RuntimeError(f"/verify says that its reward is no verdict: {why}")
        metrics = {
            key: float(value)
            for key, value in told.items()
            if isinstance(value, (int, float)) and key not in ("reward", "mask_sample")
        }
        return {"reward": float(told["reward"]), "metrics": {**metrics, "tool_calls": num_calls}}

    async def post(self, path: str, body: object) -> "httpx.Response":
        """Ask the server. Raises: ConnectionError when it cannot be reached."""
        import httpx

        try:
            return await self.http.post(f"{self.at}/{path}", json=body)
        except httpx.TransportError as error:
            raise ConnectionError(
                f"no NeMo Gym server answers at {self.at}/{path}: {type(error).__name__} {error}"
            ) from error


def _chat_tool(tool: Mapping[str, object]) -> dict[str, object]:
    """Return a tool of Responses as chat completions have it."""
    names = ("name", "description", "parameters")
    return {"type": "function", "function": {k: tool[k] for k in names if tool.get(k) is not None}}
