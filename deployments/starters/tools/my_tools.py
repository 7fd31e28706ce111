"""The tools of this project: typed functions with a docstring, which the model reads."""

import re

_PRODUCT = re.compile(r"(\d{1,9}) ?\* ?(\d{1,9})")


def multiply(expression: str) -> int:
    """Compute a product such as 12 * 34."""
    found = _PRODUCT.fullmatch(expression.strip())
    if found is None:
        raise ValueError("expected two whole numbers with a * between them")
    return int(found[1]) * int(found[2])
