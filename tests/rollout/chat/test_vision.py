"""Prompts with pictures: what the processor makes of them, once for all siblings, and counted alike
in preparation."""

from __future__ import annotations

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
from rl_core.errors import DataError, ModelError
from rl_core.models.bundle import ModelBundle
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Reply, Sampling, StopReason
from rl_core.models.vlm import VLMPolicy
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.chat.vision import VisionChat, chat_format, prompt_tokenizer, with_pictures
from rl_core.rollout.episodes.loop import run_episodes
from schemas.recipe import ModelConfig
from tests.rollout.chat_templates import SHAPES


@pytest.fixture(scope="module")
def bundle(tiny_vlm_dir: Path) -> ModelBundle:
    return ModelBundle(str(tiny_vlm_dir), ModelConfig(path=str(tiny_vlm_dir), frozen=[]))


@pytest.fixture
def item(tmp_path: Path) -> dict[str, Any]:
    return item_with(tmp_path, 1)


def item_with(folder: Path, num_pictures: int) -> dict[str, Any]:
    images = []
    for seed in range(num_pictures):
        (folder / f"{seed}.png").write_bytes(draw(random.Random(seed), Scene.NUMBER).png)
        images.append({"path": f"{seed}.png"})
    spec = {"ground_truth": "11"}
    return {
        "prompt": [
            {"role": "user", "content": "<image>\n" * num_pictures + "What number is written?"}
        ],
        "env_class": "geo3k",
        "env_extras": {
            "reward_spec": spec,
            "images": placed_images(images, folder / "rows.parquet", "row 1"),
        },
        "uid": "a",
    }


def test_each_picture_becomes_its_tokens_and_its_pixels(bundle: ModelBundle, tmp_path: Path):
    chat = chat_format(bundle, {})
    assert isinstance(chat, VisionChat)
    for num_pictures in (1, 2, 3):
        item = item_with(tmp_path, num_pictures)
        encoded = chat.encode_prompt(item["prompt"], item)
        assert encoded.token_ids.count(chat.image_token_id) == num_pictures * IMAGE_TOKENS
        assert encoded.media is not None and encoded.media.num_tokens == num_pictures * IMAGE_TOKENS
        assert encoded.media.tensors["pixel_values"].shape == (num_pictures, 1, 3, 64, 64)
        text = chat.decode(encoded.token_ids)
        assert "What number is written?" in text and text.endswith("assistant\n")


def test_a_prompt_is_processed_once_for_all_siblings(bundle: ModelBundle, item: dict[str, Any]):
    chat = chat_format(bundle, {})
    one, two = (
        chat.encode_prompt(item["prompt"], item),
        chat.encode_prompt(list(item["prompt"]), item),
    )
    assert one.media is two.media and one.media is not None


def test_preparation_counts_the_tokens_that_the_rollout_makes(bundle: ModelBundle, tmp_path: Path):
    items = [item_with(tmp_path, count) for count in (1, 2)]
    chat = chat_format(bundle, {})
    counted = prompt_tokenizer(bundle.source, text_alone=False).count_items(items, {})
    assert counted == [len(chat.encode_prompt(one["prompt"], one).token_ids) for one in items]
    assert counted[1] - counted[0] >= IMAGE_TOKENS


def test_episodes_carry_the_pictures_and_siblings_share_them(bundle: ModelBundle, tmp_path: Path):
    items = [item_with(tmp_path, 1), item_with(tmp_path, 2)]
    policy = bundle.policy.eval()
    assert isinstance(policy, VLMPolicy) and policy.blank is not None
    sampling = Sampling(4, 1.0, (bundle.tokenizer.eos_token_id,), bundle.tokenizer.pad_token_id)
    generator = torch.Generator().manual_seed(0)
    seen = []

    def generate(requests):
        seen.append([(request.num_replies, request.media) for request in requests])
        return decode(policy, requests, sampling, generator, torch.device("cpu"))

    episodes = run_episodes(items, 3, chat_format(bundle, {}), generate, {}, 256)
    assert [episode.error for episode in episodes] == [None] * 6
    assert [(count, media is not None) for count, media in seen[0]] == [(3, True), (3, True)]
    assert len({id(episode.media) for episode in episodes}) == 2


class AgainEnv(Geo3kEnv):
    """Asks again once."""

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        said = [{"role": "user", "content": "Sure?"}]
        done = self.turns == 2
        return BaseTextEnvStepOutput(
            observations=[] if done else said, reward=0.0, done=done, metadata={}
        )


def test_a_template_that_takes_parts_alone_carries_several_turns(
    tiny_vlm_dir: Path, tmp_path: Path
):
    bundle = ModelBundle(str(tiny_vlm_dir), ModelConfig(path=str(tiny_vlm_dir)))
    bundle.processor.chat_template = bundle.tokenizer.chat_template = SHAPES["idefics 3"].template
    chat = chat_format(bundle, {})
    end = bundle.tokenizer.convert_tokens_to_ids("<end_of_utterance>")
    assert end in chat.stop_ids and chat.turns.end_id == end
    item = item_with(tmp_path, 2) | {"env_class": f"{__name__}:AgainEnv"}
    reply = bundle.tokenizer.encode(" 11<end_of_utterance>", add_special_tokens=False)
    said = [Reply(reply, [-1.0] * len(reply), StopReason.EOS)]
    (episode,) = run_episodes([item], 1, chat, lambda requests: said, {}, 512)
    assert (episode.error, episode.num_turns) == (None, 2)
    whole = [
        *item["prompt"],
        {"role": "assistant", "content": "11"},
        {"role": "user", "content": "Sure?"},
    ]
    assert episode.context[: -len(reply)] == chat.encode_prompt(whole, item).token_ids


def test_an_observation_shows_no_pictures(bundle: ModelBundle):
    with pytest.raises(DataError, match="1 marks <image> for 0 images"):
        chat_format(bundle, {}).observation([{"role": "user", "content": "<image>"}], after=[])


def test_marks_that_do_not_fit_the_pictures_are_refused():
    messages = [{"role": "user", "content": "<image> and <image>"}]
    assert [part["type"] for part in with_pictures(messages, 2)[0]["content"]] == [
        "image",
        "text",
        "image",
    ]
    bare = with_pictures(
        [{"role": "system", "content": "Look."}, {"role": "user", "content": "What?"}], 2
    )
    assert [part["type"] for part in bare[1]["content"]] == ["image", "image", "text"]
    with pytest.raises(DataError, match="2 marks <image> for 1 images"):
        with_pictures(messages, 1)


def test_a_language_model_refuses_rows_with_pictures(bundle: ModelBundle, item: dict[str, Any]):
    with pytest.raises(ModelError, match="cannot see"):
        ChatFormat(bundle.tokenizer, {}).encode_prompt(item["prompt"], item)
