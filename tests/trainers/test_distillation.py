"""Distillation through the text trainer: from a folder, from a server, and from the policy's own
weights with a hint."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from rl_core.algorithms import algorithms
from rl_core.algorithms.requirements.trainers import check_serves_tokens
from rl_core.builtin.data.pictures import draw
from rl_core.data.read.row_images import placed_images
from rl_core.distributed import Block, DevicePool, placement
from rl_core.distributed.blocks import _open_block
from rl_core.errors import DataError, ModelError, RecipeError, ServiceError, Unreachable
from rl_core.trainers.distillation.same_tokens import check_prompts, check_vocabulary
from rl_core.trainers.distillation.served_teacher import ServedTeacher
from rl_core.trainers.domains.text import wire_replies
from rl_core.trainers.domains.vision import SEEING, TRACK
from rl_core.trainers.wiring import side_by_side
from tests.chat_server import Server
from tests.conftest import character_tokenizer
from tests.trainers.test_algorithms import WarmTrainer, items, recipe_of, start

NUM_STEPS = 20


@pytest.fixture(scope="module")
def warm(ray_cluster: None) -> Iterator[Block]:
    """One process that all trainers of this module share."""
    with placement(DevicePool(1, 1, 1, threads_per_device=1)) as block:
        yield block
    block.close()


@pytest.fixture(scope="module")
def teacher_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with other weights, surer of what it says, and the same tokenizer."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    return perturbed(tiny_model_dir, folder, AutoModelForCausalLM)


def perturbed(source: Path, folder: Path, auto_class: Any) -> Path:
    """Copy a model, with noise on its weights."""
    shutil.copytree(source, folder)
    model = auto_class.from_pretrained(folder)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(folder)
    return folder


def trainer_of(
    warm: Block, model_dir: Path, algorithm: dict[str, Any], *rows: dict[str, Any], **blocks: Any
) -> WarmTrainer:
    return start(warm, model_dir, recipe_of(model_dir, algorithm, **blocks), list(rows) or None)


def said_by(folder: Path, rollout: Any) -> Tensor:
    """Log-probabilities [B, T, V] of a model on the rows of a rollout."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(
            rollout.tensor("input_ids"),
            rollout.tensor("attention_mask"),
            position_ids=rollout.tensor("position_ids"),
        ).logits
    return logits.log_softmax(-1)[:, -rollout.tensor("response_mask").shape[1] - 1 : -1]


def of_samples(log_probs_BTV: Tensor, rollout: Any) -> Tensor:
    ids_BT = rollout.tensor("input_ids")[:, -log_probs_BTV.shape[1] :]
    return log_probs_BTV.gather(-1, ids_BT[..., None])[..., 0]


def test_sampled_tokens_have_the_advantage_of_the_two_models_own_log_probabilities(
    warm: Block, tiny_model_dir: Path, teacher_dir: Path
) -> None:
    block = {"name": "distillation", "teacher": str(teacher_dir)}
    metrics, rollout = trainer_of(warm, tiny_model_dir, block).step()
    acts_BT = rollout.tensor("response_mask") != 0
    student_BT, teacher_BT = (
        of_samples(said_by(folder, rollout), rollout) for folder in (tiny_model_dir, teacher_dir)
    )
    torch.testing.assert_close(
        rollout.tensor("advantages")[acts_BT],
        (teacher_BT - student_BT)[acts_BT],
        atol=1e-4,
        rtol=1e-4,
    )
    wanted = float((student_BT - teacher_BT)[acts_BT].mean())
    assert metrics["teacher_kl"] == pytest.approx(wanted, abs=1e-4)
    entropy = -(said_by(teacher_dir, rollout).exp() * said_by(teacher_dir, rollout)).sum(-1)
    assert metrics["teacher_entropy"] == pytest.approx(float(entropy[acts_BT].mean()), abs=1e-4)
    assert metrics["grad_norm"] > 0


@pytest.mark.parametrize(
    "block",
    [
        {"divergence": "jsd", "vocabulary": "full"},
        {"divergence": "forward_kl", "vocabulary": "top_k", "top_k": 8},
    ],
    ids=["jsd", "top_k"],
)
def test_a_student_comes_to_say_what_its_teacher_says(
    warm: Block, tiny_model_dir: Path, teacher_dir: Path, block: dict[str, Any]
) -> None:
    """Without rewards, and with one sample to a prompt, since nothing is compared with siblings."""
    algorithm = {"name": "distillation", "teacher": str(teacher_dir), **block}
    rollout = {"samples_per_prompt": 1, "max_new_tokens": 6}
    trainer = trainer_of(warm, tiny_model_dir, algorithm, rollout=rollout)
    steps = [trainer.step()[0] for _ in range(NUM_STEPS)]
    assert steps[-1]["teacher_divergence"] < 0.5 * steps[0]["teacher_divergence"]
    assert steps[-1]["teacher_kl"] < 0.5 * steps[0]["teacher_kl"]
    full = block["vocabulary"] == "full"
    assert steps[0]["teacher_coverage"] == 1.0 if full else 0.1 < steps[0]["teacher_coverage"] < 1
    assert steps[0]["entropy"] > 0 and steps[0]["teacher_entropy"] > 0


def test_rows_have_the_teacher_of_their_data_source(
    warm: Block, tiny_model_dir: Path, teacher_dir: Path
) -> None:
    rows = items()
    for number, row in enumerate(rows):
        row["env_extras"]["data_source"] = "ours" if number % 2 else "another"
    teachers = {"ours": str(tiny_model_dir), "another": str(teacher_dir)}
    block = {"name": "distillation", "teachers": teachers}
    _, rollout = trainer_of(warm, tiny_model_dir, block, *rows).step()
    odd_B = torch.tensor([int(uid.split("-")[1]) % 2 for uid in rollout.non_tensor_batch["uid"]])
    assert 0 < int(odd_B.sum()) < len(odd_B)
    largest_B = rollout.tensor("advantages").abs().amax(1)
    assert largest_B[odd_B == 1].max() < 1e-4 < 1e-2 < largest_B[odd_B == 0].min()
    del rows[0]["env_extras"]["data_source"]
    stray = [row | {"env_extras": row["env_extras"] | {"data_source": "stray"}} for row in rows]
    with pytest.raises(DataError, match="'stray' has no teacher; expected one of another, ours"):
        trainer_of(warm, tiny_model_dir, block, *stray).step()


def test_a_teacher_with_a_hint_reads_it_and_the_policy_does_not(
    warm: Block, teacher_dir: Path
) -> None:
    rows = items()
    for row in rows:
        row["env_extras"]["extra_info"]["solution"] = "seven"
    teacher = {"own": "base", "hint": "extra_info.solution", "hint_text": " or {hint}"}
    block = {"name": "self_distillation", "teacher": teacher, "top_k": 4}
    metrics, rollout = trainer_of(warm, teacher_dir, block, *rows).step()
    tokenizer = AutoTokenizer.from_pretrained(teacher_dir)
    read = [tokenizer.decode(ids) for ids in rollout.non_tensor_batch["teacher_prompt"]]
    assert all("or seven" in text for text in read)
    assert "seven" not in tokenizer.decode(rollout.tensor("input_ids")[0])
    assert metrics["teacher_kl"] > 1e-4, "the hint changes what the model says"
    del rows[0]["env_extras"]["extra_info"]["solution"]
    with pytest.raises(DataError, match=r"row row-0 field extra_info\.solution: missing"):
        trainer_of(warm, teacher_dir, block, *[rows[0]] * 24).step()


def served(folder: Path) -> Server:
    """A server that gives the log-probabilities of the tokens that it is sent."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        ids = torch.tensor([body["prompt"]])
        with torch.no_grad():
            said_LV = model(ids).logits[0].log_softmax(-1)
        said = said_LV[:-1].gather(-1, ids[0, 1:, None])[:, 0].tolist()
        words = [tokenizer.decode([one]) for one in body["prompt"]]
        if body.get("echo"):
            found: dict[str, Any] = {
                "logprobs": {"token_logprobs": [None, *said, -1.0], "tokens": [*words, "x"]}
            }
        else:
            pairs = zip(body["prompt"][1:], said, strict=True)
            found = {"prompt_logprobs": [None, *({str(i): {"logprob": p}} for i, p in pairs)]}
        return 200, {"choices": [found]}

    return Server(answer, "/v1/completions")


@pytest.mark.parametrize("api", ["echo", "prompt_logprobs"])
def test_a_teacher_on_a_server_judges_as_the_one_in_a_folder(
    warm: Block, tiny_model_dir: Path, teacher_dir: Path, api: str
) -> None:
    server = served(teacher_dir)
    try:
        teacher = {"url": server.url, "model": "tiny", "api": api}
        block = {"name": "distillation", "teacher": teacher}
        metrics, rollout = trainer_of(warm, tiny_model_dir, block).step()
    finally:
        server.close()
    acts_BT = rollout.tensor("response_mask") != 0
    said_BT = of_samples(said_by(teacher_dir, rollout), rollout)
    torch.testing.assert_close(
        rollout.tensor("served_log_probs")[acts_BT], said_BT[acts_BT], atol=1e-4, rtol=1e-4
    )
    assert metrics["teacher_kl"] > 0 and metrics["grad_norm"] > 0


def teacher_at(url: str, folder: Path) -> ServedTeacher:
    _, config = algorithms.resolve(
        {"name": "distillation", "teacher": {"url": url, "model": "tiny"}}, "algorithm"
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return ServedTeacher(config.named_teachers["teacher"], tokenizer, pause_s=0.01)


def test_a_server_that_is_down_is_asked_again_and_then_named(tiny_model_dir: Path) -> None:
    server = Server(lambda _: (503, "busy"), "/v1/completions")
    try:
        with pytest.raises(Unreachable, match=r"teacher http.*answers 503: .*busy"):
            teacher_at(server.url, tiny_model_dir).log_probs([[3, 4]])
        assert len(server.requests) == 4
    finally:
        server.close()
    with pytest.raises(Unreachable, match="does not answer after 4 tries"):
        teacher_at(server.url, tiny_model_dir).log_probs([[3, 4]])


@pytest.mark.parametrize(
    ("answer", "error", "complaint"),
    [
        ((400, "no echo"), ServiceError, "refuses the request"),
        ((200, {"choices": [{"text": "x"}]}), ServiceError, "gives no log-probabilities"),
        (
            (200, {"choices": [{"logprobs": {"token_logprobs": [None]}}]}),
            ModelError,
            "1 log-probabilities for 2 tokens",
        ),
        (
            (
                200,
                {"choices": [{"logprobs": {"token_logprobs": [None, -1], "tokens": ["q", "q"]}}]},
            ),
            ModelError,
            "reads the policy's tokens as 'qq'",
        ),
    ],
)
def test_a_server_that_cannot_teach_is_refused(
    tiny_model_dir: Path, answer: tuple[int, Any], error: type[Exception], complaint: str
) -> None:
    server = Server(lambda _: answer, "/v1/completions")
    try:
        with pytest.raises(error, match=complaint):
            teacher_at(server.url, tiny_model_dir).log_probs([[3, 4]])
    finally:
        server.close()


def test_a_teacher_with_another_tokenizer_is_refused_with_a_token_that_differs() -> None:
    ours, theirs = character_tokenizer(), character_tokenizer()
    check_vocabulary("it", theirs, ours)
    ids = ours.encode("ab", add_special_tokens=False)
    check_prompts("it", theirs, ours, [ids])
    theirs.add_tokens(["ab"])
    with pytest.raises(ModelError, match=r"in 1 tokens, such as 'ab', which is \d+ there"):
        check_vocabulary("it", theirs, ours)
    with pytest.raises(ModelError, match="1 instead of 2, from token 0 on, 'ab'"):
        check_prompts("it", theirs, ours, [ids])


@pytest.mark.parametrize(
    ("block", "blocks", "complaint"),
    [
        ({}, {}, "none is named: set algorithm.teacher"),
        ({"teacher": {"own": "base"}}, {}, "give the teacher a hint"),
        ({"teacher": {"own": "average"}}, {}, "needs a moving average that can be read"),
        ({"teacher": "a"}, {"rollout": {"top_p": 0.9}}, r"rollout\.top_p: a teacher judges"),
        (
            {"teacher": {"url": "http://127.0.0.1:1/v1", "model": "m"}, "vocabulary": "full"},
            {},
            "set algorithm.vocabulary: sampled",
        ),
        (
            {"teacher": {"url": "http://127.0.0.1:1/v1", "model": "m"}},
            {"rollout": {"temperature": 0.7}},
            "temperature 1; set .* got 0.7",
        ),
        (
            {"teacher": {"path": "a", "hint": "reward_spec.ground_truth"}},
            {"domain": "vision"},
            "prompts with pictures",
        ),
    ],
)
def test_what_a_teacher_cannot_serve_is_refused(
    block: dict[str, Any], blocks: dict[str, Any], complaint: str
) -> None:
    algorithm = {"name": "distillation", **block}
    cls, config = algorithms.resolve(algorithm, "algorithm")
    with pytest.raises(RecipeError, match=complaint):
        check_serves_tokens(cls(config), recipe_of(Path("unused"), algorithm, **blocks))


class SeeingTrainer(WarmTrainer):
    """A vision trainer in processes that are already there."""

    def build(self) -> None:
        token = _open_block.set(self.block)
        try:
            policy = side_by_side(SEEING, self.recipe, self.source_model)
            self.wiring = wire_replies(TRACK, self.recipe, policy, reward_service=None)
        finally:
            _open_block.reset(token)


def test_a_seeing_student_learns_from_a_seeing_teacher(
    warm: Block, tiny_vlm_dir: Path, tmp_path: Path
) -> None:
    teacher = perturbed(tiny_vlm_dir, tmp_path / "teacher", AutoModelForImageTextToText)
    rng, rows = random.Random(0), items(8)
    for row in rows:
        picture = draw(rng)
        shown = placed_images([{"bytes": picture.png}], "rows.parquet", row["uid"])
        row["env_extras"]["images"] = shown
        row["prompt"] = [{"role": "user", "content": picture.questions[0].text}]
    algorithm = {
        "name": "distillation",
        "teacher": str(teacher),
        "divergence": "jsd",
        "vocabulary": "top_k",
        "top_k": 8,
    }
    recipe = recipe_of(tiny_vlm_dir, algorithm, domain="vision")
    trainer = SeeingTrainer(warm, recipe, str(tiny_vlm_dir), rows)
    trainer.build()
    steps = [trainer.step()[0] for _ in range(8)]
    assert steps[-1]["teacher_divergence"] < 0.8 * steps[0]["teacher_divergence"]


@pytest.mark.parametrize("own", ["base", "average"])
def test_a_student_of_itself_goes_on_where_it_was_and_is_evaluated(
    warm: Block, teacher_dir: Path, tmp_path: Path, own: str
) -> None:
    """With adapters, whose moving average or absence is the teacher."""
    teacher = {"own": own, "hint": "reward_spec.ground_truth"}
    block = {"name": "self_distillation", "teacher": teacher, "top_k": 4}
    blocks: dict[str, Any] = {"lora": {"rank": 4}, "ema_lora": {"decay": 0.5, "evaluate": False}}
    first = trainer_of(warm, teacher_dir, block, **blocks)
    first.step()
    first.save(str(tmp_path))
    state = first.state_dict()
    metrics = first.step()[0]
    resumed = trainer_of(warm, teacher_dir, block, **blocks)
    resumed.load(str(tmp_path))
    resumed.load_state_dict(state)
    again = resumed.step()[0]
    names = ("loss", "teacher_divergence", "teacher_kl", "teacher_entropy", "grad_norm")
    assert [again[name] for name in names] == [metrics[name] for name in names]
    assert metrics["teacher_divergence"] > 0
    played = resumed.evaluate(items(3), 6)
    assert len(played) == 3
