"""Whatever a family of models is like, a path of computing gives what plain transformers gives, or
says why not."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from benchmarks import check_models, models_page
from benchmarks.check_models import COLUMNS, FAULTS, REFUSED, WRONG, Cell, Check, Family
from benchmarks.forks import together
from benchmarks.model_families import model_types
from benchmarks.model_paths import Found
from rl_core.errors import ModelError
from rl_core.models.decoding import decode

FAMILIES = {
    "llama": "a plain decoder",
    "granite": "logits are divided after the head",
    "gemma2": "logits and scores are capped, layers have windows",
    "stablelm": "attention takes no keyword arguments",
    "gpt2": "the backbone is not called model, and drops out",
    "qwen3_next": "layers of convolutions and recurrences between those of attention, and experts",
}


def check_what_is_broken() -> Family:
    """Sampling says that words are a little less likely than they are."""
    draw = decode._draw

    def _broken(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        tokens_R, log_probs_R = draw(*args, **kwargs)
        return tokens_R, log_probs_R - 0.01

    decode._draw = _broken
    return check_models.check("llama")


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Family]]:
    # The broken one last, since its process stays so.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), check_models.prepare) as pool:
        families = list(pool.map(check_models.check, FAMILIES))
        yield {family.model_type: family for family in families} | {
            "broken": pool.submit(check_what_is_broken).result()
        }


@pytest.mark.slow
@pytest.mark.parametrize("model_type", FAMILIES)
def test_no_path_gives_something_else_in_silence(found: dict[str, Family], model_type: str) -> None:
    family = found[model_type]
    assert not family.not_built
    assert tuple(family.cells) == COLUMNS
    assert [
        f"{path}: {cell}" for path, cell in family.cells.items() if cell.verdict in FAULTS
    ] == []


@pytest.mark.slow
def test_a_plain_decoder_is_right_on_every_path(found: dict[str, Family]) -> None:
    assert {str(cell.verdict) for cell in found["llama"].cells.values()} == {"equal"}


@pytest.mark.slow
def test_two_ranks_do_share_weights_and_sequences(found: dict[str, Family]) -> None:
    """What cannot be shared is refused by name, which ranks that share nothing would not notice."""
    for model_type, path, setting in (
        ("gpt2", "TP 2", "tp_size"),
        ("qwen3_next", "SP 2", "sp_size"),
    ):
        cell = found[model_type].cells[path]
        assert cell.verdict == REFUSED and f"placement.{setting}" in cell.why
    cell = found["qwen3_next"].cells["TP 2"]
    assert cell.verdict == REFUSED and "cannot be computed so (RuntimeError" in cell.why


@pytest.mark.slow
def test_a_path_that_is_a_little_off_is_found_and_the_others_are_not_blamed(
    found: dict[str, Family],
) -> None:
    verdicts = {path: str(cell.verdict) for path, cell in found["broken"].cells.items()}
    wrong = {path for path, verdict in verdicts.items() if verdict == WRONG}
    assert wrong == {"decode", "TP 2", "SP 2"}
    assert {verdicts[path] for path in set(verdicts) - wrong} == {"equal"}
    assert found["broken"].cells["decode"].difference == pytest.approx(0.01, rel=0.05)


def test_all_families_are_asked_for() -> None:
    assert set(FAMILIES) <= set(model_types())
    assert len(model_types()) > 200


@pytest.mark.parametrize("value", [-1.01, float("nan"), float("-inf")])
def test_another_log_probability_is_wrong_even_if_it_is_no_number(
    tmp_path: Path, value: float
) -> None:
    check = Check("llama", tmp_path)
    check.truth, check.alike = Found([[-1.0, -2.0]]), 1e-4
    assert check._path(Found([[-1.00001, -2.0]])).verdict == "equal"
    assert check._path(Found([[value, -2.0]])).verdict == WRONG
    assert check._path(Found([[value, -2.0]], falls_back="rows differ")).verdict == WRONG


def _refuse() -> None:
    raise ModelError("heads do not divide")


def _break() -> None:
    raise KeyError("hidden_size")


def test_a_call_that_raises_dies_or_hangs_is_an_answer() -> None:
    calls = [(_refuse, ()), (_break, ()), (os._exit, (3,)), (time.sleep, (60,)), (abs, (-2,))]
    refused, broken, died, hung, fine = together(calls, limit_s=20)
    assert fine == 2
    assert (refused.by_name, str(refused)) == (True, "heads do not divide")
    assert str(broken).startswith("KeyError: 'hidden_size', in test_every_family.py:")
    assert [one.by_name for one in (broken, died, hung)] == [False] * 3
    assert [one.kind for one in (broken, died, hung)] == ["KeyError", "died", "TimeoutError"]


def test_the_page_gives_each_reason_once() -> None:
    why = [
        f"rows of {name}ForCausalLM differ from the model's own forward by up to {size}"
        for name, size in (("A", 2), ("B", 3))
    ]
    families = [
        Family(name, {path: Cell(REFUSED, why=one) for path in COLUMNS})
        for name, one in zip("ab", why, strict=True)
    ]
    page = models_page.text([*families, Family("c", not_built="no tiny config")], COLUMNS, 1e-4, 5)
    assert page.count("rows of the model differ from the model's own forward") == 1
    assert "refused (1)" in page and "refused (2)" not in page
    assert "* `c`: no tiny config" in page
    assert "has 5 types" in page and "2 types were not looked at" in page
