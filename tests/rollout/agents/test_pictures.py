"""Rows with pictures that agents play: what the model is shown is what is trained."""

import base64
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rl_core.builtin.data.pictures import Scene, draw
from rl_core.builtin.models.tiny_vlm import IMAGE_TOKENS
from rl_core.data.read.row_images import placed_images
from rl_core.data_proto import DataProto
from rl_core.models.bundle import ModelBundle
from rl_core.models.decoding.request import Reply, StopReason
from rl_core.models.media import PromptMedia
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.agents.turns import TurnLog
from rl_core.rollout.chat.vision import VisionChat, chat_format
from rl_core.rollout.engine import RolloutEngine
from rl_core.rollout.in_flight import InFlight
from rl_core.train.weights.buckets import WeightVersion
from rl_core.train.weights.offer import Offer
from rl_core.train.weights.order import TOKEN_VERSIONS
from rl_core.trainers.track import prompt_batch
from schemas.recipe import ModelConfig
from schemas.sections.rollout import RolloutConfig
from tests.rollout.agents.players import picture
from tests.train.jobs import Setup, make_backend

PLAYERS = "tests.rollout.agents.players"
OPTIONS: dict[str, dict[str, Any]] = {
    name: {"agent": f"{PLAYERS}:{name}", "timeout_s": 20, "concurrency": 64}
    for name in ("looker", "swapper", "clumsy")
}


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def new_engine() -> Iterator[Callable[[Path], RolloutEngine]]:
    engines = []

    def made(folder: Path) -> RolloutEngine:
        bundle = ModelBundle(str(folder), ModelConfig(path=str(folder), frozen=[]))
        setup = Setup(str(folder))
        backend = make_backend(RankInfo(0, 1, "cpu", 1), setup, bundle=bundle)
        config = RolloutConfig(samples_per_prompt=2, max_new_tokens=5, max_context_length=512)
        engines.append(RolloutEngine(backend, config, OPTIONS, {}, 0))
        return engines[-1]

    yield made
    for engine in engines:
        engine.agents.close()


@pytest.fixture(scope="module")
def engine(new_engine: Callable[[Path], RolloutEngine], tiny_vlm_dir: Path) -> RolloutEngine:
    made = new_engine(tiny_vlm_dir)
    assert isinstance(made.chat, VisionChat)
    # Tokens of pictures are left to the prompt: this model, untrained, would write some.
    made.backend.policy.num_choices = made.chat.image_token_id
    return made


def png(seed: int) -> bytes:
    return draw(random.Random(seed), Scene.NUMBER).png


def text(seed: int) -> str:
    return base64.b64encode(png(seed)).decode()


def row(folder: Path, name: str, number: int, **extras: Any) -> dict[str, Any]:
    """A row of two pictures: a file and bytes."""
    (folder / f"{number}.png").write_bytes(png(number))
    given = [{"path": f"{number}.png"}, {"bytes": png(100 + number), "path": None}]
    images = placed_images(given, folder / "rows.parquet", "row 1")
    extras = {"images": images, "screenshot": text(200 + number)} | extras
    return {
        "uid": f"row-{number}",
        "prompt": [
            {"role": "system", "content": "Look."},
            {"role": "user", "content": "Which of <image> and <image> is right?"},
        ],
        "env_class": name,
        "env_extras": {"reward_spec": {"ground_truth": "1"}, **extras},
    }


def scored(engine: RolloutEngine, batch: DataProto, media: list[PromptMedia | None]) -> Any:
    """Log-probabilities of a direct forward, [B, T]."""
    with torch.no_grad():
        log_probs, _ = engine.backend.policy(
            batch.tensor("input_ids"),
            batch.tensor("attention_mask"),
            batch.tensor("position_ids"),
            batch.tensor("response_mask"),
            media_B=media,
        )
    return log_probs


def test_a_training_row_has_the_tokens_and_pictures_that_were_sampled(
    engine: RolloutEngine, tmp_path: Path
) -> None:
    rows = [row(tmp_path, "looker", number) for number in (1, 2)]
    batch = engine.rollout(prompt_batch(rows), 0)
    assert batch is not None and not batch.tensor("failed").any(), batch.non_tensor_batch["error"]
    assert batch.tensor("num_turns").tolist() == [3] * 4, "stitched"
    assert batch.tensor("rewards").tolist() == [2.0] * 4
    media = list(batch.non_tensor_batch["media"])
    mask = batch.tensor("response_mask").bool()
    drawn, direct = batch.tensor("rollout_log_probs")[mask], scored(engine, batch, media)[mask]
    assert len(drawn) >= 12 and torch.allclose(direct, drawn, atol=1e-4)
    chat: Any = engine.chat
    for number, item in zip((1, 1, 2, 2), range(4), strict=True):
        images = [*rows[number - 1]["env_extras"]["images"], f"data:;base64,{text(200 + number)}"]
        asked = [
            *rows[number - 1]["prompt"],
            {"role": "assistant", "content": "."},
            {"role": "user", "content": "<image>And here?"},
        ]
        whole = chat.reader(asked, images)
        assert media[item].key == whole.media.key and media[item].num_tokens == 3 * IMAGE_TOKENS
        prompt = chat.reader(rows[number - 1]["prompt"], images[:2]).token_ids
        used = batch.tensor("attention_mask")[item].bool()
        assert batch.tensor("input_ids")[item][used].tolist()[: len(prompt)] == prompt
        ids = batch.tensor("input_ids")[item]
        assert int((ids == chat.image_token_id).sum()) == 3 * IMAGE_TOKENS
    swapped = [
        PromptMedia({k: v.flip(0) for k, v in one.tensors.items()}, one.num_tokens) for one in media
    ]
    assert not torch.allclose(scored(engine, batch, swapped)[mask], drawn, atol=1e-4), "it sees"
    (said,) = {turn["role"] for turn in batch.non_tensor_batch["turns"][0][1:2]}
    assert said == "user"


def test_a_history_with_another_picture_begins_another_row(
    engine: RolloutEngine, tmp_path: Path
) -> None:
    batch = engine.rollout(prompt_batch([row(tmp_path, "swapper", 3)]), 0)
    assert batch is not None and not batch.tensor("failed").any(), batch.non_tensor_batch["error"]
    assert batch.tensor("num_turns").tolist() == [2, 1, 2, 1]
    media = list(batch.non_tensor_batch["media"])
    assert media[0].key == media[2].key != media[1].key == media[3].key
    mask = batch.tensor("response_mask").bool()
    drawn = batch.tensor("rollout_log_probs")[mask]
    assert torch.allclose(scored(engine, batch, media)[mask], drawn, atol=1e-4)


def test_what_is_no_picture_fails_its_own_episode(engine: RolloutEngine, tmp_path: Path) -> None:
    rows = [
        row(tmp_path, "clumsy", 4),
        row(tmp_path, "clumsy", 5, screenshot="aGVsbG8="),
        row(tmp_path, "clumsy", 6, images=[str(tmp_path / "none.png"), *["data:;base64,"] * 1]),
        row(tmp_path, "clumsy", 7, images=[f"data:;base64,{text(1)}"]),
    ]
    batch = engine.rollout(prompt_batch(rows), 0)
    assert batch is not None
    assert batch.tensor("failed").tolist() == [False] * 2 + [True] * 6
    errors = batch.non_tensor_batch["error"][::2]
    assert "messages.3.content.0.image_url: " in errors[1] and "not a readable image" in errors[1]
    assert "none.png: cannot be opened" in errors[2]
    assert "2 marks <image> for 1 images" in errors[3]


def test_a_policy_of_text_says_which_would_be_right(
    new_engine: Callable[[Path], RolloutEngine], tiny_model_dir: Path, tmp_path: Path
) -> None:
    engine = new_engine(tiny_model_dir)
    rows = [row(tmp_path, "looker", 1), row(tmp_path, "clumsy", 2, images=None)]
    batch = engine.rollout(prompt_batch(rows), 0)
    assert batch is not None and batch.tensor("failed").all()
    blind, sent = batch.non_tensor_batch["error"][0], batch.non_tensor_batch["error"][2]
    assert "use a vision-language model and domain: vision" in blind
    assert "messages.3.content.0.image_url: this language model reads text" in sent


def test_a_reply_with_a_pictures_token_begins_another_row_before_the_next_picture(
    tiny_vlm_dir: Path,
) -> None:
    bundle = ModelBundle(str(tiny_vlm_dir), ModelConfig(path=str(tiny_vlm_dir), frozen=[]))
    chat = chat_format(bundle, {})
    assert isinstance(chat, VisionChat)
    log, messages = TurnLog(chat), [picture(text(1))]
    asked = log.encode(messages, [])
    turn = log.begin(asked)
    ids = [chat.image_token_id, *bundle.tokenizer.encode("11", add_special_tokens=False)]
    turn.reply, turn.delivered = Reply(ids, [-1.0] * len(ids), StopReason.LENGTH), True
    said = {"role": "assistant", "content": chat.decode(ids)}
    log.answered(messages, asked.token_ids, said)
    words = log.encode([*messages, said, {"role": "user", "content": "sure?"}], [])
    assert words.basis is turn, "words may follow it"
    more = log.encode([*messages, said, picture(text(2))], [])
    assert more.basis is None and more.token_ids.count(chat.image_token_id) == 2 * IMAGE_TOKENS
    assert log.begin(more).former is None


class Ticking:
    """A board to which weights are pinned every third time that somebody looks, all the same."""

    def __init__(self) -> None:
        self.num_looks, self.number = 0, 0

    def newer(self, *, wait: bool) -> list[Offer]:
        self.num_looks += 1
        if self.num_looks % 3 and not wait:
            return []
        self.number += 1
        return [Offer(WeightVersion(self.number))]


def test_rows_with_pictures_are_read_again_when_weights_are_renewed(
    engine: RolloutEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [WeightVersion(0)]
    flight = InFlight(Ticking(), lambda offer: held.append(offer.version), lambda: held[-1], 0)
    monkeypatch.setattr(engine, "in_flight", flight)
    rows = [row(tmp_path, "looker", number) for number in (1, 2)]
    batch = engine.rollout(prompt_batch(rows), 0, WeightVersion(0))
    assert batch is not None
    assert not batch.tensor("failed").any()
    sampled_BT = batch.tensor("response_mask").bool()
    assert len(batch.tensor(TOKEN_VERSIONS)[sampled_BT].unique()) > 2
    said_BT = scored(engine, batch, list(batch.non_tensor_batch["media"]))
    torch.testing.assert_close(
        batch.tensor("rollout_log_probs")[sampled_BT], said_BT[sampled_BT], atol=2e-4, rtol=0
    )
