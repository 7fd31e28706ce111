"""The endpoint before OpenAI's own client: a real model, a real server."""

import asyncio
import math
from typing import Any

import httpx
import openai
import pytest
import torch

from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Request, Sampling
from tests.serving.conftest import NAME, Running, running

SAID: Any = [{"role": "user", "content": "1+2="}]


def decoded(server: Running, prompt: list[int], seed: int, temperature: float, length: int) -> Any:
    """The reply of the project's own decoding to a prompt."""
    model = server.endpoint.model
    generator = torch.Generator().manual_seed(seed)
    sampling = Sampling(length, temperature, model.eos_ids, model.pad_id)
    with model.policy.ready_to_decode() as packed:
        (reply,) = decode(
            model.policy,
            [Request(prompt, 1, 10_000)],
            sampling,
            generator,
            model.device,
            packed,
        )
    return reply


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
def test_tokens_and_log_probabilities_are_those_of_a_rollout(served: Running, temperature: float):
    body = {"return_token_ids": True}
    answer: Any = served.client().chat.completions.create(
        model=NAME,
        messages=SAID,
        temperature=temperature,
        seed=5,
        max_tokens=12,
        logprobs=True,
        extra_body=body,
    )
    choice: Any = answer.choices[0]
    prompt = answer.model_extra["prompt_token_ids"]
    assert prompt == served.endpoint.model.chat.encode(SAID)
    reply = decoded(served, prompt, 5, temperature, 12)
    assert choice.token_ids == reply.token_ids
    assert choice.token_log_probs == reply.log_probs
    assert [one.logprob for one in choice.logprobs.content] == reply.log_probs
    assert answer.usage.completion_tokens == len(reply.token_ids)
    assert choice.message.content == served.endpoint.model.chat.decode(reply.token_ids)


def test_an_exact_answer_does_not_depend_on_what_else_is_asked(exactly_served: Running):
    server = exactly_served
    texts = ["1+2=", "12+34=", "a much longer question than the others, so that rows differ", "9"]

    async def ask_all() -> list[Any]:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
        async with client:
            asked = [
                client.chat.completions.create(
                    model=NAME,
                    messages=[{"role": "user", "content": texts[number % len(texts)]}],
                    seed=number,
                    temperature=number % 3 / 2,
                    max_tokens=5 + 3 * (number % 5),
                    extra_body={"return_token_ids": True},
                )
                for number in range(24)
            ]
            return await asyncio.gather(*asked)

    for number, answer in enumerate(asyncio.run(ask_all())):
        prompt = answer.model_extra["prompt_token_ids"]
        reply = decoded(server, prompt, number, number % 3 / 2, 5 + 3 * (number % 5))
        assert answer.choices[0].token_ids == reply.token_ids
        assert answer.choices[0].token_log_probs == reply.log_probs


def test_a_stream_says_what_the_whole_answer_says(served: Running):
    asked: dict[str, Any] = {
        "model": NAME,
        "messages": SAID,
        "seed": 3,
        "n": 2,
        "max_tokens": 10,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole: Any = served.client().chat.completions.create(**asked)
    texts, log_probs, reasons = ["", ""], [[], []], ["", ""]
    usage = None
    for chunk in served.client().chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            log_probs[choice.index] += choice.logprobs.content if choice.logprobs else []
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [one.message.content for one in whole.choices]
    assert log_probs == [one.logprobs.content for one in whole.choices]
    assert reasons == [one.finish_reason for one in whole.choices]
    assert usage == whole.usage
    for choice in whole.choices:
        for one in choice.logprobs.content:
            assert len(one.top_logprobs) == 3
            assert one.top_logprobs[0].logprob >= one.logprob or one.top_logprobs[0] == one


def test_reply_i_is_the_first_of_the_seed_plus_i(served: Running):
    def say(seed: int, n: int) -> list[str | None]:
        answer: Any = served.client().chat.completions.create(
            model=NAME, messages=SAID, seed=seed, n=n, max_tokens=8
        )
        return [one.message.content for one in answer.choices]

    assert say(7, 3) == [*say(7, 1), *say(8, 1), *say(9, 1)]


def test_completions_take_and_give_tokens_and_score_a_prompt(served: Running):
    client = served.client()
    prompt = served.endpoint.model.tokenizer.encode("1+2=3")
    by_ids: Any
    by_text: Any
    by_ids, by_text = (
        client.completions.create(model=NAME, prompt=one, max_tokens=6, temperature=0, logprobs=2)
        for one in (prompt, "1+2=3")
    )
    assert by_ids.choices[0].text == by_text.choices[0].text
    echo: Any = client.completions.create(
        model=NAME, prompt=[prompt, prompt], max_tokens=6, temperature=0, logprobs=2, echo=True
    )
    assert len(echo.choices) == 2
    for choice in echo.choices:
        assert choice.logprobs.token_logprobs[0] is None
        assert choice.logprobs.token_logprobs[len(prompt) :] == pytest.approx(
            by_ids.choices[0].logprobs.token_logprobs, abs=1e-5
        )
        assert "".join(choice.logprobs.tokens).startswith("1+2=3")
    policy = served.endpoint.model.policy
    with torch.no_grad():
        logits = policy.language_model(torch.tensor([prompt])).logits.float().log_softmax(-1)
    wanted = [float(logits[0, place, token]) for place, token in enumerate(prompt[1:])]
    assert echo.choices[0].logprobs.token_logprobs[1 : len(prompt)] == pytest.approx(
        wanted, abs=1e-4
    )
    scored: Any = client.completions.create(
        model=NAME, prompt=prompt, max_tokens=0, logprobs=1, echo=True
    )
    assert scored.choices[0].text == "1+2=3"
    assert len(scored.choices[0].logprobs.tokens) == len(prompt)


def test_a_stop_string_ends_a_reply_and_is_not_in_its_text(served: Running):
    asked: dict[str, Any] = {"model": NAME, "messages": SAID, "temperature": 0, "max_tokens": 20}
    text = served.client().chat.completions.create(**asked).choices[0].message.content
    stop = text[4:6]
    choice = served.client().chat.completions.create(**asked, stop=[stop]).choices[0]
    assert choice.message.content == text[: text.index(stop)]
    assert choice.finish_reason == "stop"
    pieces = served.client().chat.completions.create(**asked, stop=stop, stream=True)
    said = "".join(one.choices[0].delta.content or "" for one in pieces)
    assert said == choice.message.content


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 0.5, "extra_body": {"min_p": 0.1}}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 1000}, "n"),
        ({"frequency_penalty": 1.5}, "frequency_penalty"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop": [""]}, "stop"),
        ({"messages": []}, "messages"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"extra_body": {"best": 1}}, "best"),
        ({"extra_body": {"prompt_token_ids": [10**6]}}, "prompt"),
        ({"extra_body": {"prompt_token_ids": [5] * 10_000}}, "messages"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:,"}}],
                    }
                ]
            },
            "messages.0.content",
        ),
    ],
)
def test_a_wrong_parameter_is_named(served: Running, changes: dict[str, Any], param: str):
    asked = {"model": NAME, "messages": SAID, "max_tokens": 2} | changes
    with pytest.raises(openai.BadRequestError) as caught:
        served.client().chat.completions.create(**asked)
    assert caught.value.type == "invalid_request_error"
    assert (caught.value.param or "").startswith(param)


def test_another_model_and_another_path_are_not_found(served: Running):
    with pytest.raises(openai.NotFoundError, match=NAME):
        served.client().chat.completions.create(model="other", messages=SAID)
    with pytest.raises(openai.NotFoundError):
        served.client().embeddings.create(model=NAME, input="x")
    assert [one.id for one in served.client().models.list()] == [NAME]
    assert served.client().models.retrieve(NAME).id == NAME


def test_a_key_is_asked_for_where_one_is_set(tiny_model_dir: Any):
    with running(tiny_model_dir, api_key="right") as server:
        with pytest.raises(openai.AuthenticationError):
            server.client(api_key="wrong").models.list()
        assert server.client(api_key="right").models.list().data


def test_clients_that_go_away_free_their_rows_and_a_full_queue_says_so(tiny_model_dir: Any):
    async def ask(server: Running) -> list[Any]:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:

            async def one(number: int) -> Any:
                body = {
                    "model": NAME,
                    "messages": SAID,
                    "max_tokens": 300 if number % 2 else 6,
                    "min_tokens": 300 if number % 2 else 0,
                    "stream": number % 4 == 1,
                    "seed": number,
                }
                wait = 0.5 if number % 2 else 60
                try:
                    return await asyncio.wait_for(
                        client.post("/v1/chat/completions", json=body), wait
                    )
                except TimeoutError:
                    return None

            return await asyncio.gather(*(one(number) for number in range(64)))

    with running(tiny_model_dir, max_rows=4, max_waiting=16) as server:
        answers = asyncio.run(ask(server))
        codes = {answer.status_code for answer in answers if answer is not None}
        assert codes == {200, 429}
        full = next(one for one in answers if one is not None and one.status_code == 429)
        assert full.json()["error"]["code"] == "queue_full"
        after = server.client().chat.completions.create(model=NAME, messages=SAID, max_tokens=2)
        assert after.choices
        for _ in range(200):
            if not server.engine.num_rows:
                break
            asyncio.run(asyncio.sleep(0.02))
        assert server.engine.num_rows == 0


def test_log_probabilities_that_json_cannot_hold_are_bounded(served: Running):
    answer: Any = served.client().chat.completions.create(
        model=NAME,
        messages=SAID,
        logprobs=True,
        top_logprobs=5,
        max_tokens=3,
        extra_body={"top_k": 2},
    )
    for one in answer.choices[0].logprobs.content:
        assert [likely.logprob == -9999.0 for likely in one.top_logprobs] == [
            *[False] * 2,
            *[True] * 3,
        ]
        assert math.isfinite(one.logprob)
