"""TRL's side of `make bench-trl`; it is run by TRL's own interpreter and imports nothing of this
repository.

Each line on standard input lets `GRPOTrainer` take one step; its figures go to standard output as a
line of JSON.

    .venv-trl/bin/python -P benchmarks/trl_peer.py '{"model": ..., "prompts": ..., ...}'
"""

import json
import os
import re
import statistics
import sys
import tempfile
import time
from importlib.metadata import version

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


class Clock:
    """Wall-clock and CPU seconds since its creation; it waits for pending GPU work."""

    def __init__(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self):
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter() - self.wall, time.process_time() - self.cpu


class Timed(GRPOTrainer):
    """GRPOTrainer that records the time of its generation and the number of tokens."""

    generated = (0.0, 0.0)
    num_tokens = 0

    def _generate(self, *args, **kwargs):
        clock = Clock()
        answer = super()._generate(*args, **kwargs)
        self.generated = clock.read()
        self.num_tokens = sum(len(ids) for ids in answer[1])
        return answer


class Turns(TrainerCallback):
    """Callback that takes a step when told to, and prints its figures."""

    def __init__(self, out, rewards):
        self.out, self.rewards, self.trainer = out, rewards, None

    def on_step_begin(self, args, state, control, **kwargs):
        if not sys.stdin.readline():
            os._exit(0)
        self.rewards.clear()
        self.clock = Clock()

    def on_step_end(self, args, state, control, **kwargs):
        (wall, cpu), (generate_wall, generate_cpu) = self.clock.read(), self.trainer.generated
        figures = {
            "generate": [generate_wall, generate_cpu],
            "train": [wall - generate_wall, cpu - generate_cpu],
            "step": [wall, cpu],
            "tokens": self.trainer.num_tokens,
            "peak_bytes": peak_bytes(),
            "reward": statistics.mean(self.rewards),
        }
        print(json.dumps(figures), file=self.out, flush=True)


def peak_bytes():
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    with open("/proc/self/status") as file:
        status = file.read()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def last_number_is_right(completion, answer):
    found = NUMBER.findall(completion[0]["content"])
    return float(bool(found) and found[-1].replace(",", "") == answer)


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not for the other side
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    with open(settings["prompts"]) as lines:
        rows = [json.loads(line) for line in lines]
    rewards = []

    def reward(completions, answer, **_):
        given = []
        for one, right in zip(completions, answer, strict=True):
            given.append(last_number_is_right(one, right))
        rewards.extend(given)
        return given

    num_passes = 1 if settings["one_pass"] else settings["num_prompts"]
    forced = {"min_new_tokens": settings["new_tokens"]} if settings["forced"] else {}
    turns = Turns(out, rewards)
    trainer = Timed(
        model=settings["model"],
        reward_funcs=reward,
        train_dataset=Dataset.from_list(
            [{"prompt": row["prompt"], "answer": row["answer"]} for row in rows]
        ),
        peft_config=LoraConfig(**settings["lora"], target_modules="all-linear")
        if settings["lora"]
        else None,
        callbacks=[turns],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=settings["device"] == "cpu",
            bf16=settings["autocast"],
            model_init_kwargs={"dtype": settings["weights"]},
            gradient_checkpointing=settings["checkpointing"],
            per_device_train_batch_size=settings["samples"] * settings["num_prompts"] // num_passes,
            gradient_accumulation_steps=num_passes,
            num_generations=settings["samples"],
            max_completion_length=settings["new_tokens"],
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            generation_kwargs=forced,
            beta=0.0,
            learning_rate=settings["learning_rate"],
            lr_scheduler_type="constant",
            max_steps=len(rows) // settings["num_prompts"],
            shuffle_dataset=False,
            seed=settings["seed"],
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    turns.trainer = trainer
    names = ("trl", "torch", "transformers")
    print(json.dumps({"ready": {name: version(name) for name in names}}), file=out, flush=True)
    trainer.train()


if __name__ == "__main__":
    main()
