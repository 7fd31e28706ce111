"""Multi-turn conversations with a slow tool: all at once, compared with their sum and the longest
of them.

Sixty-four conversations of 1 to `--turns` turns each, on a tiny model, with a tool that takes 100
ms per turn (a thread that sleeps, or a coroutine). Printed in one run:

* the longest chain: the tool's time in the longest conversation alone;
* the time of the loop, and the part of it that is decoding;
* one conversation after the other, measured;
* the tool's time of all conversations together.

    python -m benchmarks.episodes [--conversations 64] [--turns 5] [--tool-ms 100]
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable

import torch

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, register
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Reply, Request, Sampling
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.episodes.loop import run_episodes
from schemas.sections.rollout import EpisodeConfig

NEW_TOKENS = 4
CONTEXT = 4096
CPU = torch.device("cpu")


class ToolEnv(BaseTextEnv):
    """Environment that answers after a delay, for `max_turns` turns."""

    tool_s = 0.1

    def step(self, action: str) -> BaseTextEnvStepOutput | Awaitable[BaseTextEnvStepOutput]:
        time.sleep(self.tool_s)
        return self.answer()

    def answer(self) -> BaseTextEnvStepOutput:
        """Return the outcome of a turn."""
        self.turns += 1
        done = self.turns == self.max_turns
        observations = [] if done else [{"role": "user", "content": "go on"}]
        return BaseTextEnvStepOutput(observations=observations, reward=0.1, done=done, metadata={})


class AsyncToolEnv(ToolEnv):
    """The same environment with a coroutine."""

    async def step(self, action: str) -> BaseTextEnvStepOutput:
        await asyncio.sleep(self.tool_s)
        return self.answer()


class Policy:
    """A small random Llama that records how long it decodes."""

    def __init__(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        from rl_core.models.causal_lm import CausalLMPolicy
        from rl_core.models.chat.tokenizer import load_tokenizer
        from rl_core.models.locate import locate
        from rl_core.runtime.home import Home

        source = locate("embedded:smollm2-135m-instruct", Home.default().models)
        self.chat = ChatFormat(load_tokenizer(source), {})
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(self.chat.tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=CONTEXT,
        )
        self.policy = CausalLMPolicy(LlamaForCausalLM(config).eval())
        self.sampling = Sampling(NEW_TOKENS, 1.0, (self.chat.tokenizer.eos_token_id,), 0)
        self.generator = torch.Generator().manual_seed(0)
        self.decode_s = 0.0

    def __call__(self, requests: list[Request]) -> list[Reply]:
        start = time.perf_counter()
        replies = decode(self.policy, requests, self.sampling, self.generator, CPU)
        self.decode_s += time.perf_counter() - start
        return replies


def items(env_class: str, turns: list[int]) -> list[dict[str, object]]:
    """Return one row per conversation."""
    items_made: list[dict[str, object]] = []
    for row, count in enumerate(turns):
        items_made.append(
            {
                "uid": str(row),
                "prompt": [{"role": "user", "content": f"conversation {row}"}],
                "env_class": env_class,
                "env_extras": {
                    "reward_spec": {"ground_truth": "1"},
                    "extra_info": {"max_turns": count},
                },
            }
        )
    return items_made


def play(policy: Policy, rows: list[dict[str, object]]) -> tuple[float, float]:
    """Return the seconds in all, and the seconds of decoding."""
    policy.decode_s = 0.0
    start = time.perf_counter()
    episodes = run_episodes(
        rows, 1, policy.chat, policy, {}, CONTEXT, len(rows), EpisodeConfig(at_once=len(rows))
    )
    elapsed_s = time.perf_counter() - start
    failed = [episode.error for episode in episodes if episode.error]
    assert not failed, failed[0]
    return elapsed_s, policy.decode_s


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tool-ms", type=float, default=100.0)
    options = parser.parse_args()
    ToolEnv.tool_s = options.tool_ms / 1000
    register("tool", ToolEnv)
    register("async_tool", AsyncToolEnv)
    turns = [1 + row % options.turns for row in range(options.conversations)]
    tool_s = ToolEnv.tool_s
    # Threads that wait for each other would be most of the time of so small a model.
    torch.set_num_threads(1)
    policy = Policy()
    play(policy, items("tool", [1]))
    print(
        f"{len(turns)} conversations of 1 to {max(turns)} turns, a tool of {options.tool_ms:g} ms"
    )
    print(f"  longest chain, tool alone     {max(turns) * tool_s:7.2f} s")
    for name, env_class in (("threads", "tool"), ("coroutines", "async_tool")):
        elapsed_s, decode_s = play(policy, items(env_class, turns))
        print(f"  all at once, {name:<11}      {elapsed_s:7.2f} s  (decoding {decode_s:.2f} s)")
    spent = [play(policy, [row]) for row in items("tool", turns)]
    alone_s, decode_s = (sum(column) for column in zip(*spent, strict=True))
    print(f"  one after the other           {alone_s:7.2f} s  (decoding {decode_s:.2f} s)")
    print(f"  tools of all together         {sum(turns) * tool_s:7.2f} s")


if __name__ == "__main__":
    main()
