"""Pictures that an environment shows in an observation."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.builtin.data.pictures import Scene, draw
from rl_core.builtin.models.tiny_vlm import IMAGE_TOKENS
from rl_core.data.read.row_images import placed_images
from rl_core.envs import BaseTextEnvStepOutput
from rl_core.envs.geo3k import Geo3kEnv
from rl_core.models.bundle import ModelBundle
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Reply, Sampling, StopReason
from rl_core.models.media import PromptMedia
from rl_core.rollout.chat.vision import VisionChat, chat_format, with_pictures
from rl_core.rollout.episodes.loop import run_episodes
from schemas.recipe import ModelConfig
from tests.rollout.chat_templates import SHAPES

TOOLS = "rl_core.envs.tool_env:ToolEnv"
SECOND = base64.b64encode(draw(random.Random(7), Scene.NUMBER).png).decode()


class ShowEnv(Geo3kEnv):
    """Shows a picture after the first reply."""

    part: Any = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SECOND}"}}  # noqa: RUF012

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        said = [{"role": "user", "content": [self.part, {"type": "text", "text": "And here?"}]}]
        done = self.turns == 2
        return BaseTextEnvStepOutput(
            observations=[] if done else said, reward=0.0, done=done, metadata={}
        )


class SoundEnv(ShowEnv):
    """Shows what no model here can read."""

    part: Any = {"type": "audio", "audio": "a.wav"}  # noqa: RUF012


@pytest.fixture
def bundle(tiny_vlm_dir: Path) -> ModelBundle:
    found = ModelBundle(str(tiny_vlm_dir), ModelConfig(path=str(tiny_vlm_dir), frozen=[]))
    assert found.processor is not None
    found.processor.chat_template = found.tokenizer.chat_template = SHAPES["idefics 3"].template
    return found


def item(folder: Path, env: str) -> Any:
    (folder / "a.png").write_bytes(draw(random.Random(1), Scene.NUMBER).png)
    images = placed_images([{"path": "a.png"}], folder / "rows.parquet", "row 1")
    return {
        "prompt": [{"role": "user", "content": "<image>\nWhat number is written?"}],
        "env_class": f"{__name__}:{env}",
        "env_extras": {"reward_spec": {"ground_truth": "11"}, "images": images},
        "uid": "a",
    }


def said(bundle: ModelBundle, text: str) -> list[Reply]:
    ids = bundle.tokenizer.encode(text, add_special_tokens=False)
    return [Reply(ids, [-1.0] * len(ids), StopReason.EOS)]


def test_the_tokens_and_pixels_are_those_of_the_whole_conversation(
    bundle: ModelBundle, tmp_path: Path
) -> None:
    chat, row = chat_format(bundle, {}), item(tmp_path, "ShowEnv")
    assert isinstance(chat, VisionChat)
    reply = said(bundle, " 11<end_of_utterance>")
    (episode,) = run_episodes([row], 1, chat, lambda requests: reply, {}, 512)
    assert (episode.error, episode.num_turns) == (None, 2)
    whole = [
        *row["prompt"],
        {"role": "assistant", "content": "11"},
        {"role": "user", "content": "<image>And here?"},
    ]
    images = [*row["env_extras"]["images"], f"data:;base64,{SECOND}"]
    encoded = chat.reader(whole, images)
    assert episode.context[: -len(reply[0].token_ids)] == encoded.token_ids
    assert episode.media is not None and encoded.media is not None
    assert episode.media.num_tokens == 2 * IMAGE_TOKENS
    assert episode.media.key == encoded.media.key


def test_trainer_and_rollout_agree_on_replies_to_the_picture(
    bundle: ModelBundle, tmp_path: Path
) -> None:
    chat, row = chat_format(bundle, {}), item(tmp_path, "ShowEnv")
    assert isinstance(chat, VisionChat)
    policy = bundle.policy.eval()
    # Tokens of pictures are left to the prompt: this model, untrained, would write some.
    policy.num_choices = chat.image_token_id
    sampling = Sampling(4, 1.0, tuple(chat.stop_ids), bundle.tokenizer.pad_token_id)
    generator = torch.Generator().manual_seed(0)
    seen: list[PromptMedia | None] = []

    def generate(requests: Any) -> list[Reply]:
        seen.extend(request.media for request in requests)
        return decode(policy, requests, sampling, generator, torch.device("cpu"))

    (episode,) = run_episodes([row], 1, chat, generate, {}, 512)
    assert (episode.error, episode.num_turns) == (None, 2)
    assert [media and media.num_tokens for media in seen] == [IMAGE_TOKENS, 2 * IMAGE_TOKENS]
    ids, mask = torch.tensor([episode.context]), torch.tensor([episode.mask])
    used = torch.ones_like(ids)
    positions = torch.arange(ids.shape[1])[None]
    with torch.no_grad():
        scored, _ = policy(ids, used, positions, mask, media_B=[episode.media])
        blind, _ = policy(ids, used, positions, mask, media_B=[swapped(episode.media)])
    drawn = torch.tensor(episode.log_probs)[mask[0].bool()]
    assert torch.allclose(scored[0][mask[0].bool()], drawn, atol=1e-4)
    assert not torch.allclose(blind[0][mask[0].bool()], drawn, atol=1e-4), "it sees the picture"


def test_a_picture_that_a_tool_draws_is_seen(bundle: ModelBundle, tmp_path: Path) -> None:
    chat, row = chat_format(bundle, {}), item(tmp_path, "ShowEnv") | {"env_class": "drawing"}
    tool = "tests.envs.tool_env.tools_of_tests:draw"
    options = {"drawing": {"target": TOOLS, "tools": [tool], "show_tools": "system"}}
    call = '<tool_call>{"name": "draw", "arguments": {}}</tool_call><end_of_utterance>'
    replies = [said(bundle, call), said(bundle, " 11<end_of_utterance>")]
    (episode,) = run_episodes([row], 1, chat, lambda requests: replies.pop(0), options, 4096)
    assert (episode.error, episode.num_turns, episode.reward) == (None, 2, 1.0)
    assert episode.media is not None and episode.media.num_tokens == 2 * IMAGE_TOKENS
    assert episode.turns[1]["role"] == "tool"


def test_calls_and_names_of_messages_stay_beside_their_pictures() -> None:
    calls = [{"type": "function", "function": {"name": "draw", "arguments": {}}}]
    asked = {"role": "assistant", "content": "", "tool_calls": calls}
    told = {"role": "tool", "content": "<image>", "name": "draw", "tool_call_id": "1"}
    shown = with_pictures([{"role": "user", "content": "<image>"}, asked, told], 1)
    assert shown[1]["tool_calls"] == calls
    assert (shown[2]["name"], shown[2]["tool_call_id"]) == ("draw", "1")
    assert shown[0]["content"] == [{"type": "image"}], "a mark is a user's alone"
    assert shown[2]["content"] == [{"type": "text", "text": "<image>"}]


def swapped(media: PromptMedia | None) -> PromptMedia:
    """The same pictures, each in the place of the other."""
    assert media is not None
    tensors = {name: value.flip(0) for name, value in media.tensors.items()}
    return PromptMedia(tensors, media.num_tokens)


def test_a_reply_with_a_pictures_token_fails_its_row(bundle: ModelBundle, tmp_path: Path) -> None:
    chat = chat_format(bundle, {})
    assert isinstance(chat, VisionChat)
    reply = said(bundle, " 11")
    reply[0].token_ids[0] = chat.image_token_id
    row = item(tmp_path, "ShowEnv")
    (episode,) = run_episodes([row], 1, chat, lambda requests: reply, {}, 512)
    assert "a reply wrote 1 tokens that stand for pictures" in str(episode.error)


def test_a_part_that_is_no_picture_fails_its_row(bundle: ModelBundle, tmp_path: Path) -> None:
    reply = said(bundle, " 11")
    row = item(tmp_path, "SoundEnv")
    (episode,) = run_episodes([row], 1, chat_format(bundle, {}), lambda _: reply, {}, 512)
    assert "holds a part of type 'audio' that cannot be read" in str(episode.error)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("data:image/png;base64,abcde", "not the base64 of a picture"),
        ("data:image/png;base64,aGVsbG8=", "not a readable image"),
        ("/no/such/file.png", "/no/such/file.png"),
    ],
)
def test_a_picture_that_cannot_be_opened_fails_its_row_by_name_and_turn(
    url: str, why: str, bundle: ModelBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShowEnv, "part", {"type": "image_url", "image_url": {"url": url}})
    reply, row = said(bundle, " 11"), item(tmp_path, "ShowEnv")
    (episode,) = run_episodes([row], 1, chat_format(bundle, {}), lambda _: reply, {}, 512)
    assert "row a, observation after turn 1: " in str(episode.error)
    assert why in str(episode.error)


def test_a_template_that_leaves_pictures_out_fails_the_row(
    bundle: ModelBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, row = chat_format(bundle, {}), item(tmp_path, "ShowEnv")
    assert isinstance(chat, VisionChat)
    read = chat.reader.read
    monkeypatch.setattr(
        chat.reader, "read", lambda text, images: read(text.replace("<image>And", "And"), images)
    )
    reply = said(bundle, " 11")
    (episode,) = run_episodes([row], 1, chat, lambda _: reply, {}, 512)
    assert "row a, observation after turn 1: 1 pictures" in str(episode.error)
