"""Pictures in chat requests: OpenAI's own client, a real server, the embedded vision-language
model."""

import base64
import io
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from PIL import Image

from rl_core.builtin.data.pictures import Scene, draw
from rl_core.builtin.models.tiny_vlm import IMAGE_TOKENS
from rl_core.errors import ModelError
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Request, Sampling
from rl_core.rollout.chat.vision import VisionChat
from rl_core.serving import served_model
from tests.serving.conftest import NAME, Running, running


def png(seed: int) -> str:
    return base64.b64encode(draw(random.Random(seed), Scene.NUMBER).png).decode()


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def shown(*seeds: int, text: str = "What number is written?") -> Any:
    parts = [picture(f"data:image/png;base64,{png(seed)}") for seed in seeds]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def ask(server: Running, messages: Any, **options: Any) -> Any:
    body = {"return_token_ids": True}
    options = {"seed": 5, "max_tokens": 8, "temperature": 1.0} | options
    with server.client() as client:
        answer = client.chat.completions.create(
            model=NAME, messages=messages, extra_body=body, **options
        )
        return list(answer) if options.get("stream") else answer


def test_a_reply_is_the_projects_own_to_the_same_pictures(seeing: Running) -> None:
    answers = [ask(seeing, shown(*seeds)) for seeds in ((1,), (2,), (1, 2), (2, 1))]
    chat: Any = seeing.endpoint.model.chat
    model: Any = seeing.endpoint.model
    assert isinstance(chat, VisionChat)
    replies = []
    for seeds, answer in zip(((1,), (2,), (1, 2), (2, 1)), answers, strict=True):
        marks = [{"role": "user", "content": "<image>" * len(seeds) + "What number is written?"}]
        row = chat.reader(marks, [f"data:;base64,{png(seed)}" for seed in seeds])
        assert answer.model_extra["prompt_token_ids"] == row.token_ids
        assert row.token_ids.count(chat.image_token_id) == len(seeds) * IMAGE_TOKENS
        sampling = Sampling(8, 1.0, model.eos_ids, model.pad_id)
        generator = torch.Generator().manual_seed(5)
        with model.policy.ready_to_decode() as packed:
            asked = [Request(row.token_ids, 1, 100, row.media)]
            (reply,) = decode(model.policy, asked, sampling, generator, model.device, packed)
        assert answer.choices[0].token_ids == reply.token_ids
        assert answer.choices[0].token_log_probs == reply.log_probs
        replies.append(reply.log_probs)
    assert replies[0] != replies[1] and replies[2] != replies[3], "it sees which picture is where"


def test_pictures_stream_and_stand_beside_texts_in_a_batch(seeing: Running) -> None:
    whole = ask(seeing, shown(3), n=2)
    text = ask(seeing, [{"role": "user", "content": "What is <image>?"}])
    assert text.choices[0].token_ids
    said = ["", ""]
    for chunk in ask(seeing, shown(3), n=2, stream=True):
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
    assert said == [one.message.content for one in whole.choices]
    assert whole.usage.prompt_tokens > IMAGE_TOKENS


def test_a_mark_in_a_text_is_no_place_of_a_picture(seeing: Running) -> None:
    answer = ask(seeing, shown(1, text="Is <image> a tag?"))
    chat: Any = seeing.endpoint.model.chat
    assert answer.model_extra["prompt_token_ids"].count(chat.image_token_id) == IMAGE_TOKENS
    earlier = [{"role": "user", "content": "Is <image> a tag?"}]
    answer = ask(seeing, [*earlier, {"role": "assistant", "content": "yes"}, *shown(1)])
    assert answer.model_extra["prompt_token_ids"].count(chat.image_token_id) == IMAGE_TOKENS


def flat(size: int, kind: str) -> str:
    file = io.BytesIO()
    Image.new("1", (size, size)).save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("data:image/png;base64,*not base64*", "is not base64"),
        ("data:image/png;base64,aGVsbG8=", "send a whole PNG, JPEG, WebP or GIF file"),
        (f"data:image/png;base64,{png(1)[:400]}", "send a whole PNG"),
        ("data:image/svg+xml;base64,PHN2Zy8+", "not a readable image"),
        ("data:application/pdf;base64,aGVsbG8=", "must be data:image/png;base64,"),
        ("data:image/png,hello", "must be data:image/png;base64,"),
        ("/etc/passwd", "must be data:image/png;base64,"),
        ("file:///etc/passwd", "must be data:image/png;base64,"),
        ("s3://bucket/a.png", "must be data:image/png;base64,"),
        ("http://127.0.0.1:9/a.png", "is no public address; RL_TRAIN_MEDIA_HOSTS=HOST"),
    ],
)
def test_a_picture_that_cannot_be_shown_is_refused_by_its_place(
    seeing: Running, url: str, why: str
) -> None:
    said = [*shown(1), {"role": "assistant", "content": "1"}]
    said.append({"role": "user", "content": [{"type": "text", "text": "And?"}, picture(url)]})
    with pytest.raises(openai.BadRequestError) as refused:
        ask(seeing, said)
    error: Any = refused.value.body
    assert error["type"] == "invalid_request_error" and why in error["message"]
    assert error["param"].startswith("messages.2.content.1.image_url")


def test_an_address_is_fetched_from_a_host_that_is_named(
    seeing: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(base64.b64decode(png(1)))
    with files_served(tmp_path) as url:
        with pytest.raises(openai.BadRequestError, match="no public address"):
            ask(seeing, [{"role": "user", "content": [picture(f"{url}/a.png")]}])
        monkeypatch.setenv("RL_TRAIN_MEDIA_HOSTS", "127.0.0.1")
        fetched = ask(seeing, [{"role": "user", "content": [picture(f"{url}/a.png")]}])
        with pytest.raises(openai.BadRequestError, match=r"b\.png: cannot be opened"):
            ask(seeing, [{"role": "user", "content": [picture(f"{url}/b.png")]}])
    sent = [{"role": "user", "content": [picture(f"data:image/png;base64,{png(1)}")]}]
    assert fetched.choices[0].token_log_probs == ask(seeing, sent).choices[0].token_log_probs


@contextmanager
def files_served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder. Yields: their address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_picture_of_too_many_points_is_refused_before_it_is_decoded(seeing: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="8200 x 8200 is more than 64000000 pixels"):
        ask(
            seeing,
            [{"role": "user", "content": [picture(f"data:image/png;base64,{flat(8200, 'PNG')}")]}],
        )


def test_more_pictures_than_the_model_has_room_for_are_refused(seeing: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="shorten it") as refused:
        ask(seeing, shown(*[1] * 200))
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"type": "input_audio", "input_audio": {}}, "reads text and image_url"),
        ({"type": "image_url"}, "has no 'image_url'"),
        (
            {"type": "image_url", "image_url": {"url": "https://x.y/z.png", "detail": "low"}},
            "detail",
        ),
    ],
)
def test_other_parts_are_refused_by_name(seeing: Running, part: Any, why: str) -> None:
    with pytest.raises(openai.BadRequestError, match=why):
        ask(seeing, [{"role": "user", "content": [part]}])


def test_tokens_of_pictures_come_with_messages_alone(seeing: Running) -> None:
    ids = ask(seeing, shown(1)).model_extra["prompt_token_ids"]
    with seeing.client() as client:
        with pytest.raises(openai.BadRequestError, match="stand for pictures"):
            client.completions.create(model=NAME, prompt=ids)
        with pytest.raises(openai.BadRequestError, match="does not go with pictures"):
            client.chat.completions.create(
                model=NAME, messages=shown(1), extra_body={"prompt_token_ids": ids}
            )


def test_a_model_of_text_refuses_pictures_by_name(served: Running) -> None:
    with pytest.raises(openai.BadRequestError, match=r"messages\.0\.content\.0.*sees no pictures"):
        ask(served, shown(1))


def test_a_model_whose_processor_cannot_be_loaded_answers_text(
    tiny_vlm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(source: str) -> None:
        raise ModelError(f"model.path {source}: cannot load a processor: torchvision")

    monkeypatch.setattr(served_model, "load_processor", missing)
    with running(tiny_vlm_dir) as server:
        assert ask(server, [{"role": "user", "content": "1+2="}]).choices[0].token_ids
        with pytest.raises(openai.BadRequestError, match=r"text alone: .*torchvision"):
            ask(server, shown(1))
