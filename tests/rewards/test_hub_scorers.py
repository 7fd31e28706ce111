"""Judges from the Hub, each on a tiny model of its own class made from a config; weights as they
are published."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from rl_core.errors import ModelError
from rl_core.rewards import Sample, Scorer, reward_scorers
from rl_core.rewards.hub import scoring_head
from rl_core.rewards.scorers.image_reward import MEAN, STD

SIDE = 16
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
VISION = {**TEXT, "image_size": SIDE, "patch_size": 8}
WORDS = ["<|startoftext|>", "<|endoftext|>", "a", "red", "blue", "ball", "room"]


def pictures() -> list[Image.Image]:
    torch.manual_seed(1)
    return [
        Image.fromarray(torch.randint(0, 255, (20, 24, 3), dtype=torch.uint8).numpy())
        for _ in range(2)
    ]


def samples(*prompts: str) -> list[Sample]:
    return [Sample(prompt, image=image) for prompt, image in zip(prompts, pictures(), strict=True)]


def make(**block: Any) -> Scorer:
    cls, config = reward_scorers.resolve(block, "rewards.0")
    return cls(config)


@pytest.fixture(scope="module")
def clip_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP model of random weights, and its processor."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        CLIPConfig,
        CLIPImageProcessor,
        CLIPModel,
        CLIPProcessor,
        PreTrainedTokenizerFast,
    )

    backend = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="a")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<|startoftext|>", 0), ("<|endoftext|>", 1)]
    backend.post_processor = processors.TemplateProcessing(
        f"{ends[0][0]} $A {ends[1][0]}", special_tokens=ends
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|startoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
    )
    size = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size)
    text = {
        **TEXT,
        "vocab_size": len(WORDS),
        "max_position_embeddings": 8,
        "eos_token_id": 1,
        "bos_token_id": 0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CLIPModel(CLIPConfig(text_config=text, vision_config=VISION, projection_dim=12))
    folder = tmp_path_factory.mktemp("clip")
    model.save_pretrained(folder)
    CLIPProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)
    return folder


def logits(folder: Path, asked: list[Sample]) -> torch.Tensor:
    """What transformers itself says about pictures and their own prompts."""
    from transformers import CLIPModel, CLIPProcessor

    model: Any = CLIPModel.from_pretrained(folder)
    processor: Any = CLIPProcessor.from_pretrained(folder)
    inputs = processor(
        images=[sample.image for sample in asked],
        text=[sample.prompt for sample in asked],
        return_tensors="pt",
        padding=True,
    )
    with torch.inference_mode():
        return model(**inputs).logits_per_image.diagonal() / model.logit_scale.exp()


def test_clip_and_pickscore_are_the_cosine_each_in_its_own_scale(clip_dir: Path):
    asked = samples("a red ball", "a blue room")
    cosines = logits(clip_dir, asked)
    clip = torch.tensor(make(name="clip", model=str(clip_dir)).score(asked))
    torch.testing.assert_close(clip, 2.5 * cosines.clamp_min(0))
    pick = make(name="pickscore", model=str(clip_dir), processor=None, divisor=2.0)
    scale = 1 / 0.07
    torch.testing.assert_close(
        torch.tensor(pick.score(asked)), scale * cosines / 2, rtol=1e-3, atol=1e-4
    )


def test_a_long_prompt_is_cut_off_at_the_models_limit(clip_dir: Path):
    long, cut = samples("a red ball " * 10, "a red ball a red ball")
    first, second = make(name="clip", model=str(clip_dir)).score(
        [long, Sample(cut.prompt, image=long.image)]
    )
    assert first == pytest.approx(second)


def as_open_clip(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The names that OpenCLIP gives to the same tensors, written down independently of the code
    under test."""
    named = {
        "visual.class_embedding": weights["vision_model.embeddings.class_embedding"],
        "visual.positional_embedding": weights["vision_model.embeddings.position_embedding.weight"],
        "visual.conv1.weight": weights["vision_model.embeddings.patch_embedding.weight"],
        "visual.proj": weights["visual_projection.weight"].T,
        "token_embedding.weight": weights["text_model.embeddings.token_embedding.weight"],
        "positional_embedding": weights["text_model.embeddings.position_embedding.weight"],
        "text_projection": weights["text_projection.weight"].T,
        "logit_scale": weights["logit_scale"],
        "attn_mask": torch.zeros(8, 8),
    }
    for kind in ("weight", "bias"):
        named[f"visual.ln_pre.{kind}"] = weights[f"vision_model.pre_layrnorm.{kind}"]
        named[f"visual.ln_post.{kind}"] = weights[f"vision_model.post_layernorm.{kind}"]
        named[f"ln_final.{kind}"] = weights[f"text_model.final_layer_norm.{kind}"]
        for ours, theirs in (("visual.transformer", "vision_model"), ("transformer", "text_model")):
            for layer in range(2):
                mine, source = f"{ours}.resblocks.{layer}", f"{theirs}.encoder.layers.{layer}"
                qkv = [weights[f"{source}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
                named[f"{mine}.attn.in_proj_{kind}"] = torch.cat(qkv)
                named[f"{mine}.attn.out_proj.{kind}"] = weights[
                    f"{source}.self_attn.out_proj.{kind}"
                ]
                named[f"{mine}.ln_1.{kind}"] = weights[f"{source}.layer_norm1.{kind}"]
                named[f"{mine}.ln_2.{kind}"] = weights[f"{source}.layer_norm2.{kind}"]
                named[f"{mine}.mlp.c_fc.{kind}"] = weights[f"{source}.mlp.fc1.{kind}"]
                named[f"{mine}.mlp.c_proj.{kind}"] = weights[f"{source}.mlp.fc2.{kind}"]
    return named


def test_hpsv2_puts_open_clips_weights_into_the_model(clip_dir: Path, tmp_path: Path):
    from transformers import CLIPModel

    tuned: Any = CLIPModel.from_pretrained(clip_dir)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    path = tmp_path / "HPS.pt"
    torch.save({"state_dict": as_open_clip(tuned.state_dict())}, path)
    tuned.save_pretrained(tmp_path / "tuned")
    for file in clip_dir.iterdir():
        if not (tmp_path / "tuned" / file.name).exists():
            (tmp_path / "tuned" / file.name).write_bytes(file.read_bytes())
    asked = samples("a red ball", "a blue room")
    expected = logits(tmp_path / "tuned", asked)
    found = make(name="hpsv2", model=str(clip_dir), weights=str(path)).score(asked)
    torch.testing.assert_close(torch.tensor(found), expected)
    assert (expected - logits(clip_dir, asked)).abs().max() > 1e-3, "the fine-tuning does not show"


def test_weights_that_do_not_fit_are_refused_by_name(clip_dir: Path, tmp_path: Path):
    torch.save({"visual.proj": torch.zeros(16, 12), "surplus": torch.zeros(1)}, tmp_path / "HPS.pt")
    with pytest.raises(
        ModelError, match=r"rewards.hpsv2.weights .* missing .*unknown \['surplus'\] \(1\)"
    ):
        make(name="hpsv2", model=str(clip_dir), weights=str(tmp_path / "HPS.pt"))
    with pytest.raises(ModelError, match="no CLIPModel there"):
        make(name="clip", model=str(tmp_path))


def test_aesthetic_is_its_head_on_the_pictures_embedding(clip_dir: Path, tmp_path: Path):
    torch.manual_seed(3)
    head = scoring_head(12)
    torch.save(
        {f"layers.{name}": tensor for name, tensor in head.state_dict().items()},
        tmp_path / "head.pth",
    )
    scorer: Any = make(name="aesthetic", model=str(clip_dir), weights=str(tmp_path / "head.pth"))
    asked = samples("a", "red")
    embedded, _ = scorer.clip.embed([sample.image for sample in asked], ["a", "a"])
    with torch.inference_mode():
        torch.testing.assert_close(
            torch.tensor(scorer.score(asked)), head.eval()(embedded)[:, 0] / 10
        )
    assert set(head.state_dict()) == {
        f"{layer}.{kind}" for layer in (0, 2, 4, 6, 7) for kind in ("weight", "bias")
    }


@pytest.fixture(scope="module")
def blip_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BLIP of random weights, and its processor."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        BertTokenizer,
        BlipConfig,
        BlipForImageTextRetrieval,
        BlipImageProcessor,
        BlipProcessor,
    )

    folder = tmp_path_factory.mktemp("blip")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "blue", "ball", "room"]
    backend = Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = BertTokenizer(tokenizer_object=backend)
    text = {
        **TEXT,
        "vocab_size": len(words),
        "encoder_hidden_size": 16,
        "max_position_embeddings": 40,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BlipForImageTextRetrieval(
            BlipConfig(text_config=text, vision_config=VISION, image_text_hidden_size=8)
        )
    model.save_pretrained(folder)
    images = BlipImageProcessor(size={"height": 32, "width": 32})
    BlipProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)
    return folder


def as_image_reward(
    weights: dict[str, torch.Tensor], head: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The names of the published file, written down independently of the code under test."""
    named = {f"mlp.layers.{name}": tensor for name, tensor in head.items()}
    vision = {
        "embeddings.class_embedding": "cls_token",
        "embeddings.position_embedding": "pos_embed",
        "embeddings.patch_embedding": "patch_embed.proj",
        "post_layernorm": "norm",
        "encoder.layers": "blocks",
        "self_attn.qkv": "attn.qkv",
        "self_attn.projection": "attn.proj",
        "layer_norm1": "norm1",
        "layer_norm2": "norm2",
    }
    for name, tensor in weights.items():
        if name.startswith("text_encoder."):
            named[f"blip.{name}"] = tensor
        elif name.startswith("vision_model."):
            name = name.removeprefix("vision_model.")
            for theirs, published in vision.items():
                name = name.replace(theirs, published)
            named[f"blip.visual_encoder.{name}"] = tensor
    return named | {"blip.text_encoder.embeddings.position_ids": torch.arange(40)[None]}


def test_image_reward_is_its_head_on_what_blip_reads(blip_dir: Path, tmp_path: Path):
    from transformers import BlipForImageTextRetrieval, BlipProcessor

    torch.manual_seed(4)
    head = scoring_head(16).eval()
    blip: Any = BlipForImageTextRetrieval.from_pretrained(blip_dir)
    torch.save(as_image_reward(blip.state_dict(), head.state_dict()), tmp_path / "ImageReward.pt")
    scorer = make(
        name="image_reward",
        model=str(blip_dir),
        weights=str(tmp_path / "ImageReward.pt"),
        image_size=SIDE,
        batch_size=1,
    )
    asked = samples("a red ball", "a blue room")
    processor: Any = BlipProcessor.from_pretrained(blip_dir)
    inputs = processor(
        images=[sample.image for sample in asked],
        text=[sample.prompt for sample in asked],
        size={"height": SIDE, "width": SIDE},
        padding=True,
        return_tensors="pt",
    )
    with torch.inference_mode():
        seen = blip.vision_model(pixel_values=inputs["pixel_values"]).last_hidden_state
        read = blip.text_encoder(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            encoder_hidden_states=seen,
        )
        expected = (head(read.last_hidden_state[:, 0])[:, 0] - MEAN) / STD
    torch.testing.assert_close(torch.tensor(scorer.score(asked)), expected, rtol=1e-4, atol=1e-5)
