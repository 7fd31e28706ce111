"""What the language model is asked, and what is drawn of its answer."""

from rl_core.rollout.diffusion.rewriting import QuestionLengths, drawing, drawn_prompt, question
from schemas.sections.policy import ModelConfig
from schemas.sections.tracks import ImagesTrack, Rewrite, TextTrack

ITEM = {"uid": "row-1", "prompt": "siete {or so}", "metadata": {"digit": 7}, "media_refs": []}


def test_a_question_holds_instruction_examples_and_prompt_in_the_template():
    track = TextTrack(
        system="be brief",
        examples=[Rewrite(prompt="zwei", rewrite="two")],
        template="say: {prompt}",
    )
    row = question(ITEM, track)
    assert row["prompt"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "say: zwei"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "say: siete {or so}"},
    ]
    assert (row["uid"], row["env_class"]) == ("row-1", "rewrite")
    assert row["env_extras"]["reward_spec"]["ground_truth"] == {"digit": 7}


def test_without_instruction_and_examples_the_prompt_stands_alone():
    assert question(ITEM, TextTrack())["prompt"] == [{"role": "user", "content": "siete {or so}"}]


def test_what_is_drawn_is_the_rewrite_in_one_line_with_the_rows_metadata():
    track = ImagesTrack(model=ModelConfig(path="somewhere"), template="a photo of {rewrite}")
    prompt = drawn_prompt(" seven\n{indeed} ", track)
    assert prompt == "a photo of seven {indeed}"
    drawn = drawing(ITEM, "row-1/0", prompt)
    assert drawn == {
        "uid": "row-1/0",
        "prompt": prompt,
        "asked": ITEM["prompt"],
        "metadata": {"digit": 7},
    }


def test_questions_are_counted_in_tokens():
    class Words:
        def __call__(self, texts: list[str], verbose: bool) -> dict[str, list[list[str]]]:
            return {"input_ids": [text.split() for text in texts]}

    assert QuestionLengths(Words()).lengths(["one two", "three"]) == [2, 1]
