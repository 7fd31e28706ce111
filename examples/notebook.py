# %% [markdown]
"""# A training in a notebook

Each `# %%` begins a cell; VS Code and Jupyter (by jupytext) open this file as a notebook. It trains
SmolLM2 for some minutes on two CPU cores, with an environment and a reward that are written here.
"""

# %%
import random
import re

import rl_core as rl
from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.rewards import Sample
from rl_core.trainers.progress import ProgressEvent

# %% [markdown]
# ## Rows, an environment, a reward


# %%
def make_rows(seed: int, count: int) -> list[dict[str, object]]:
    """Return questions which of two numbers is larger."""
    draw = random.Random(seed)
    rows: list[dict[str, object]] = []
    for number in range(count):
        a, b = draw.sample(range(10, 100), 2)
        question = f"Which number is larger, {a} or {b}? Reply with the number alone."
        rows.append(
            {
                "id": f"{seed}-{number}",
                "prompt": [{"role": "user", "content": question}],
                "env_class": "larger",
                "reward_spec": {"method": "rule", "ground_truth": str(max(a, b))},
            }
        )
    return rows


class Larger(BaseTextEnv):
    """The first number of the reply is right: 1.0, else 0.0."""

    ground_truth_kinds = frozenset({"string"})

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade a reply."""
        self.turns += 1
        found = re.search(r"\d+", action)
        reward = float(found is not None and found[0] == str(self.ground_truth))
        return {"observations": [], "reward": reward, "done": True, "metadata": {}}


def brief(sample: Sample) -> float:
    """A tenth for a reply of one word."""
    return 0.1 if len(sample.text.split()) == 1 else 0.0


# %% [markdown]
# ## Train, and look on


# %%
def watch(event: ProgressEvent) -> None:
    """Stop early once nearly everything is right."""
    if event.metrics["reward_mean"] > 1.05:
        raise rl.StopTraining


run = rl.train(
    "smoke/text",
    {
        "name": "notebook",
        "environments": {},
        "training.num_iterations": 2,
        "training.steps_per_iteration": 4,
        "training.prompts_per_step": 8,
    },
    rows=make_rows(seed=1, count=64),
    held_out=make_rows(seed=2, count=32),
    environments={"larger": Larger},
    rewards=[brief],
    callbacks=[watch],
)
print(run)

# %%
print(run.metrics[["reward_mean", "response_length_mean", "grad_norm"]])
print(run.evaluations)

# %% [markdown]
# ## Measure and talk to the model

# %%
if run.model is not None:
    scores = rl.evaluate(run.model)
    print(scores.mean_reward, scores.samples_path)
    print(rl.load(run.model).chat("Which number is larger, 12 or 57?", max_new_tokens=8))
