"""Every sampling setting in each engine beside transformers' own processors, on the same weights of
SmolLM2-135M in float32.

    python -m benchmarks.sampling [--new-tokens 12] [--write]

An engine draws replies. transformers reads the same tokens in one forward pass, and its processors
say, position by position, which tokens could be drawn and with what log-probability. A cell has the
largest difference of a drawn token's log-probability, and at how many positions another set of
tokens could be drawn: rounding moves a token over the edge. For `stop` it is the number of replies
that transformers' `StopStringCriteria` ends elsewhere.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks import page
from benchmarks.mismatch import MODEL, backend_of, prompts_of
from rl_core.distributed.cluster import ray_cluster
from rl_core.distributed.isolated_actor import PROJECT
from rl_core.distributed.servers.vllm_engine import VllmEngine
from rl_core.models.decoding.request import Reply, Request, Sampling
from rl_core.models.decoding.stop_strings import StopStrings
from rl_core.models.export.checksums import checksum
from rl_core.models.locate import locate
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.dedicated import DedicatedTextEngine
from rl_core.rollout.engine import RolloutEngine
from rl_core.runtime.home import Home
from rl_core.train.weights.buckets import WeightVersion
from schemas.recipe import DType, ModelConfig
from schemas.sections.rollout import RolloutConfig, SyncMode, VllmConfig
from schemas.sections.sampling import SamplingConfig

SAMPLING = page.PAGE.with_name("sampling.md")
SIBLINGS = 3
SETTINGS: tuple[Mapping[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"top_k": 20},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"repetition_penalty": 1.3},
    {"min_new_tokens": 8},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "repetition_penalty": 1.1},
)
STOP = [" the", "."]


def engines(source: str) -> dict[str, RolloutEngine]:
    """Return the engines of this process, with the weights of `source` in float32."""
    info = RankInfo(0, 1, "cpu", torch.get_num_threads())
    options = RolloutConfig(), {}, {}, 0
    model = ModelConfig(path=MODEL)
    own = DedicatedTextEngine(
        source, model, None, SyncMode.FULL, DType.FLOAT32, *options, rank_info=info
    )
    backend = backend_of(source, DType.FLOAT32, adapters=False, exact=False)
    return {"in process": RolloutEngine(backend, *options), "dedicated": own}


def vllm_engine(source: str, python: str) -> VllmEngine:
    """Return vLLM's engine with the weights of `source`, checked in its own process."""
    config = RolloutConfig(vllm=VllmConfig(python=python, kv_cache_gib=1.0))
    info = RankInfo(0, 1, "cpu", torch.get_num_threads())
    kept = ModelConfig(path=MODEL), None, SyncMode.FULL, DType.FLOAT32
    engine = VllmEngine(source, *kept, config, {}, {}, 0, rank_info=info)
    sums = {name: checksum(one) for name, one in engine.replica.parameters.items()}
    engine.finish_sync(WeightVersion(1), sums, torch.float32)
    return engine


def drawn(
    engine: RolloutEngine, prompts: Sequence[list[int]], sampling: Sampling, stop: Sequence[str]
) -> list[Reply]:
    """Sample replies, group by group."""
    strings = StopStrings.of(stop)
    requests = []
    for prompt in prompts:
        requests.append(Request(prompt, SIBLINGS, sampling.max_new_tokens, stop=strings))
    with engine.decoding(sampling, torch.Generator().manual_seed(0)) as decode:
        return decode(requests)


def processors(settings: Mapping[str, Any], num_prompt: int, eos_ids: Sequence[int]) -> list[Any]:
    """Return transformers' processors of these settings, in the order of its `generate`."""
    from transformers import generation

    made = {
        "repetition_penalty": generation.RepetitionPenaltyLogitsProcessor,
        "min_new_tokens": lambda least: generation.MinNewTokensLengthLogitsProcessor(
            num_prompt, least, list(eos_ids)
        ),
        "temperature": generation.TemperatureLogitsWarper,
        "top_k": generation.TopKLogitsWarper,
        "top_p": generation.TopPLogitsWarper,
        "min_p": generation.MinPLogitsWarper,
    }
    return [make(settings[name]) for name, make in made.items() if name in settings]


@torch.no_grad()
def peer_scores(
    model: Any, prompt: list[int], reply: Reply, settings: Mapping[str, Any], eos_ids: Sequence[int]
) -> Tensor:
    """Return transformers' processed scores at each position of a reply, [T, V]."""
    ids = torch.tensor([[*prompt, *reply.token_ids]])
    logits_TV = model(ids).logits[0, len(prompt) - 1 : -1]
    steps = []
    for place, logits_V in enumerate(logits_TV):
        scores = logits_V[None].clone()
        for one in processors(settings, len(prompt), eos_ids):
            scores = one(ids[:, : len(prompt) + place], scores)
        steps.append(scores[0])
    return torch.stack(steps)


def kept_masks(reply: Reply, num_tokens: int) -> Tensor:
    """Return the tokens that could be drawn at each position, [T, V]."""
    kept_TV = torch.ones(len(reply.token_ids), num_tokens, dtype=torch.bool)
    if reply.support is None:
        return kept_TV
    begin = 0
    for place, size in enumerate(reply.support.sizes_T.tolist()):
        num_ids = size if size >= 0 else -1 - size
        ids = torch.from_numpy(reply.support.ids[begin : begin + num_ids].astype("int64"))
        kept_TV[place] = size < 0
        kept_TV[place, ids] = size >= 0
        begin += num_ids
    return kept_TV


def cell(engine: RolloutEngine, model: Any, settings: Mapping[str, Any], new_tokens: int) -> str:
    """Compare one setting in one engine with transformers."""
    choice = SamplingConfig.model_validate(
        {name: value for name, value in settings.items() if name != "temperature"}
    )
    temperature = settings.get("temperature", 1.0)
    sampling = Sampling(
        new_tokens,
        temperature,
        tuple(sorted(engine.chat.stop_ids)),
        engine.tokenizer.pad_token_id,
        choice=choice,
        records_support=bool(choice.leaves_out),
    )
    prompts = prompts_of(engine.tokenizer)
    distance, others, num_positions = 0.0, 0, 0
    for row, reply in enumerate(drawn(engine, prompts, sampling, [])):
        prompt = prompts[row // SIBLINGS]
        scores_TV = peer_scores(model, prompt, reply, settings, sampling.eos_ids)
        same_T = (kept_masks(reply, scores_TV.shape[1]) == (scores_TV > -torch.inf)).all(-1)
        tokens_T = torch.tensor(reply.token_ids)[:, None]
        expected_T = scores_TV.log_softmax(-1).gather(1, tokens_T)[:, 0]
        differs_T = (torch.tensor(reply.log_probs) - expected_T).abs()
        distance = max(distance, float(differs_T[same_T].amax()) if same_T.any() else 0.0)
        others += int((~same_T).sum())
        num_positions += len(reply.token_ids)
    return f"{distance:.0e}, {others} of {num_positions}"


def stop_cell(engine: RolloutEngine, new_tokens: int) -> str:
    """Count the replies that transformers' criterion ends elsewhere."""
    from transformers import StopStringCriteria

    criterion = StopStringCriteria(engine.tokenizer, STOP)
    sampling = engine.sampling(new_tokens, 1.0)
    replies = drawn(engine, prompts_of(engine.tokenizer), sampling, STOP)
    elsewhere = 0
    for reply in replies:
        ids = reply.token_ids
        ends = (
            place
            for place in range(1, len(ids) + 1)
            if bool(criterion(torch.tensor([ids[:place]]), torch.empty(0))[0])
        )
        expected = next(ends, None)
        found = len(ids) if str(reply.stop_reason) == "stop" else None
        elsewhere += expected != found
    return f"{elsewhere} of {len(replies)} replies"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--new-tokens", type=int, default=12)
    parser.add_argument(
        "--vllm", default=VllmConfig().python, help="interpreter of vLLM; absent: not measured"
    )
    parser.add_argument("--write", action="store_true", help="into docs/sampling.md")
    options = parser.parse_args()
    source = locate(MODEL, Home.default().models)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        meeting = f"file://{Path(folder) / 'meeting'}"
        dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
        stack.callback(dist.destroy_process_group)
        compared = engines(source)
        if (PROJECT / options.vllm).is_file():
            stack.enter_context(ray_cluster(None, 1, "cpu"))
            compared["vLLM"] = vllm_engine(source, options.vllm)
        text = page.table(["setting", *compared], measured(source, compared, options.new_tokens))
    print(text)
    if options.write:
        words = "\n\n".join((__doc__ or "").split("\n\n")[2:])
        page.write_section(
            "Each engine beside transformers",
            f"{words.strip()}\n\n{text}\n\n`make bench-sampling`, {options.new_tokens} tokens a "
            f"reply. {page.machine()}",
            SAMPLING,
        )


def measured(
    source: str, compared: Mapping[str, RolloutEngine], new_tokens: int
) -> list[list[str]]:
    """Return the rows of the table: a setting, and what each engine makes of it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    rows = []
    for settings in SETTINGS:
        named = ", ".join(f"`{name}` {value:g}" for name, value in settings.items())
        cells = [cell(one, model, settings, new_tokens) for one in compared.values()]
        rows.append([named, *cells])
        print(rows[-1], flush=True)
    ends = [stop_cell(one, new_tokens) for one in compared.values()]
    return [*rows, [f"`stop` {', '.join(map(repr, STOP))}", *ends]]


if __name__ == "__main__":
    main()
