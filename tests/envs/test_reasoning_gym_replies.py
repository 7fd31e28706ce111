"""`reasoning_gym` on one sum whose answer is known, at each place an answer is read from."""

import pytest
import reasoning_gym

from rl_core.envs import make

ENTRY = reasoning_gym.create_dataset("chain_sum", seed=5, size=4)[3]
A = ENTRY["answer"]
B = str(int(A) + 1)
INFO = {"task": "chain_sum", "seed": 5, "index": 3, "question": ENTRY["question"]}


@pytest.mark.parametrize(
    ("place", "reply", "reward", "why"),
    [
        ("last_number", A, 1.0, "the number alone"),
        ("last_number", f"It is {A}.", 1.0, "a full stop"),
        ("last_number", f"${A}", 1.0, "a dollar sign"),
        ("last_number", f"**{A}**", 1.0, "markdown"),
        ("last_number", f"\\boxed{{{A}}}", 1.0, "a box is no obstacle"),
        ("last_number", f"{B}? No: {A}", 1.0, "the last number"),
        ("last_number", f"{A}\r\n", 1.0, "a CRLF line end"),
        ("last_number", f"{A} apples", 1.0, "a unit"),
        ("last_number", B, 0.0, "wrong"),
        ("last_number", f"-{A}" if not A.startswith("-") else A[1:], 0.0, "the sign counts"),
        ("last_number", f"{A} or {B}", 0.0, "hedging: the last counts"),
        ("last_number", f"{A}, checked in 2 steps", 0.0, "a later number counts"),
        ("last_number", f"{A}.5", 0.0, "decimals count"),
        ("last_number", f"{A}1", 0.0, "a longer number"),
        ("last_number", "none", 0.0, "no number"),
        ("last_number", "", 0.0, "nothing was said"),
        ("answer_tag", f"<answer>{A}</answer>", 1.0, "the plain form"),
        ("answer_tag", f"<answer> {A}\n</answer>", 1.0, "white space"),
        ("answer_tag", f"<answer>{B}</answer><answer>{A}</answer>", 1.0, "the last tag"),
        ("answer_tag", f"<answer>{A}</answer> in 2 steps", 1.0, "what follows is not read"),
        ("answer_tag", f"<answer>{B}</answer>", 0.0, "wrong"),
        ("answer_tag", A, 0.0, "no tag"),
        ("answer_tag", f"<answer>{A}", 0.0, "never closed"),
        ("answer_tag", f"{A}</answer>", 0.0, "never opened"),
        ("answer_tag", f"<answer>{A}</answer><answer>{B}</answer>", 0.0, "taken back"),
        ("answer_tag", f"<answer>{A} {B}</answer>", 0.0, "two candidates"),
        ("answer_tag", "<answer></answer>", 0.0, "an empty tag"),
        ("boxed", f"\\boxed{{{A}}}", 1.0, "the plain form"),
        ("boxed", f"${{\\boxed{{{A}}}}}$", 1.0, "inside math mode and braces"),
        ("boxed", f"\\boxed{{{B}}} no, \\boxed{{{A}}}", 1.0, "the last box"),
        ("boxed", f"\\boxed{{{B}}}", 0.0, "wrong"),
        ("boxed", A, 0.0, "no box"),
        ("boxed", f"\\boxed{{{A}", 0.0, "never closed"),
        ("boxed", "\\boxed{}", 0.0, "an empty box"),
        ("boxed", f"\\boxed{{{A}, {B}}}", 0.0, "a list of candidates"),
        ("last_line", f"Adding up:\n{A}", 1.0, "the last line"),
        ("last_line", f"{A}\n\n \n", 1.0, "empty lines after it"),
        ("last_line", f"{A}\nDone.", 0.0, "words after it"),
        ("last_line", f"It is {A}", 0.0, "words on the line: the scorer's fraction is not paid"),
        ("text", A, 1.0, "the whole reply"),
        ("text", f" {A}\n", 1.0, "white space around"),
        ("text", f"{A} {A}", 0.0, "said twice"),
        ("text", f"The answer is {A}", 0.0, "words around"),
    ],
)  # fmt: skip
def test_replies(place: str, reply: str, reward: float, why: str) -> None:
    env = make(
        "reasoning_gym", {"answer": place}, {"reward_spec": {"ground_truth": A}, "extra_info": INFO}
    )
    env.init([])
    assert env.step(reply)["reward"] == reward, why  # type: ignore[index]
