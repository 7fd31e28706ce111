"""Models made on the spot keep their version as long as the code that decides their weights stays
the same."""

import ast
import hashlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from rl_core.builtin.embedded import embedded_folder, embedded_names
from rl_core.models.locate import making_notes
from rl_core.runs.recipes import load_recipe

MODELS = "rl_core.builtin.models"
DIGITS = ("rl_core.builtin.data.digit_prompts", "rl_core.rewards.scorers.digit")
SD3 = (f"{MODELS}.tiny_sd3_warm_up", f"{MODELS}.tiny_sd3")
ODD_PROMPTS = ("rl_core.builtin.data.odd_prompts", "rl_core.builtin.data.foreign_digits")
OPTIMIZER = f"{MODELS}.warm_up_optimizer"

DECIDES_THE_WEIGHTS = {
    "tiny-vlm": (
        *(f"{MODELS}.tiny_vlm_warm_up", f"{MODELS}.tiny_vlm_lessons", f"{MODELS}.tiny_vlm"),
        *(OPTIMIZER, "rl_core.builtin.data.pictures"),
    ),
    "tiny-sd3": (*SD3, *DIGITS),
    "tiny-unified": (
        *(
            f"{MODELS}.tiny_unified_warm_up",
            f"{MODELS}.tiny_unified",
            *SD3,
            *ODD_PROMPTS,
            *DIGITS,
            OPTIMIZER,
        ),
        *("rl_core.models.unified.compact", "rl_core.models.unified.pipeline"),
    ),
    "smollm2-enhancer": (f"{MODELS}.enhancer_warm_up", *ODD_PROMPTS, DIGITS[0]),
    "smollm2-adder": (f"{MODELS}.adder_warm_up", "rl_core.builtin.data.reasoning_problems"),
}
KNOWN = {
    "tiny-vlm": ("7a3d0af9a86e", "7a3d0af9a86e"),
    "tiny-sd3": ("4e0c1ed776fc", "54e125309c86"),
    "tiny-unified": ("01cd1c578b1c", "01cd1c578b1c"),
    "smollm2-enhancer": ("8409b6d7db71", "c5dbcd00cb6e"),
    "smollm2-adder": ("9f54c10e0369", "4a356d358f9e"),
}
"""Model -> its version, and the digest of the code that gave it."""


def code_of(module: str) -> str:
    """A module's code without what cannot change a weight: imports, annotations, docstrings,
    comments and layout."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    return ast.unparse(WithoutWords().visit(tree))


class WithoutWords(ast.NodeTransformer):
    """Takes imports, docstrings and the annotations of functions and variables out of a module."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        self.generic_visit(node)
        if node.value is None:
            return node  # a field of a class, whose type may decide how it is read
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def digest_of(name: str) -> str:
    digest = hashlib.sha256()
    for module in DECIDES_THE_WEIGHTS[name]:
        digest.update(code_of(module).encode())
    return digest.hexdigest()[:12]


@pytest.mark.parametrize("name", sorted(DECIDES_THE_WEIGHTS))
def test_a_model_made_on_the_spot_has_a_new_version_when_its_code_changed(name: str):
    version, digest = KNOWN[name]
    assert embedded_folder(name, Path("models")) == Path("models") / f"{name}-{version}"
    assert digest_of(name) == digest, (
        f"the code behind embedded:{name} is another: if its weights are, too, it needs a new "
        f"version in embedded.py; either way KNOWN has to say {digest_of(name)!r}"
    )


def test_every_model_made_on_the_spot_is_looked_at():
    assert set(embedded_names()) - {"smollm2-135m-instruct"} == set(DECIDES_THE_WEIGHTS)


def test_what_has_yet_to_be_made_is_said_with_its_time(tmp_path: Path):
    recipe = load_recipe("distill")
    student, teacher = making_notes(recipe, tmp_path)
    assert "making embedded:smollm2-135m-instruct, once: about 10 seconds" in student
    assert "embedded:smollm2-adder" in teacher
    embedded_folder("smollm2-adder", tmp_path).mkdir()
    assert making_notes(recipe, tmp_path) == [student]
    for name in embedded_names():
        assert making_notes(load_recipe("text", [f"model.path=embedded:{name}"]), tmp_path / name)
