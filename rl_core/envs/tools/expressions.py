"""Checks that a model's answer is safe to pass to a scorer that evaluates it.

Some scorers of reasoning-gym call Python's `eval`, or sympy's `parse_expr` (which calls it), on the
reply. These checks accept what a right answer needs and nothing that could call, reach an
attribute, or compute for hours.
"""

from __future__ import annotations

import ast

MAX_CHARACTERS = 2000
MAX_EXPONENT = 99
MAX_DIGITS = 30
FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "exp",
        "log",
        "ln",
        "sqrt",
        "Abs",
    ]
)

_LITERALS = (
    ast.Expression,
    ast.List,
    ast.Tuple,
    ast.Constant,
    ast.Name,
    ast.UnaryOp,
    ast.USub,
    ast.UAdd,
    ast.Load,
)
_ARITHMETIC = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.UnaryOp, ast.USub, ast.UAdd,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Call,
)  # fmt: skip


def is_harmless_literal(text: str) -> bool:
    """Return True if `eval(text)` can do no more than build nested lists, or fail to parse."""
    tree = _parse(text)
    return len(text) <= MAX_CHARACTERS and (
        tree is None or all(isinstance(node, _LITERALS) for node in ast.walk(tree))
    )


def is_plain_arithmetic(text: str) -> bool:
    """Return True if `text` is numbers, names, + - * / **, and calls of well-known functions, with
    small powers only."""
    tree = _parse(text)
    return (
        len(text) <= MAX_CHARACTERS
        and tree is not None
        and all(_is_small_arithmetic(node) for node in ast.walk(tree))
    )


def _parse(text: str) -> ast.Expression | None:
    if len(text) > MAX_CHARACTERS:
        return None
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_small_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and len(str(node.value)) <= MAX_DIGITS
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _power_depth(node.left) <= 1 and _is_small_exponent(node.right)
    return isinstance(node, _ARITHMETIC)


def _power_depth(tree: ast.AST) -> int:
    below = max((_power_depth(child) for child in ast.iter_child_nodes(tree)), default=0)
    return below + (isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow))


def _is_small_exponent(tree: ast.AST) -> bool:
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    products = sum(isinstance(node, ast.Mult) for node in ast.walk(tree))
    small = all(
        isinstance(value, int | float) and abs(value) <= MAX_EXPONENT for value in constants
    )
    return small and _power_depth(tree) == 0 and products <= 2
