"""Classes that exist in this process alone, such as those of a notebook, written into a module that
workers can import."""

from __future__ import annotations

import base64
import hashlib
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from rl_core.data.store.atomic import atomic_write_text

_MODULE = '''"""{title}"""

from rl_core.distributed.by_value import read

{name} = read(
    "{text}"
)
'''


def write_module(cls: type[Any], folder: Path, of: object) -> str:
    """Write a module whose only name is the class, and return its import path `module:Class`.

    The module is named by a digest of the source of `of`, so the same code is the same name.
    """
    from ray import cloudpickle

    pickled = cloudpickle.dumps(cls)  # pyright: ignore[reportPrivateImportUsage]
    try:
        source = inspect.getsource(of).encode()  # type: ignore[arg-type]
    except (OSError, TypeError):  # typed into an interactive Python
        source = pickled
    module = f"given_{hashlib.sha256(source).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    title = f"The class {cls.__name__}, given to rl_core.train as an object."
    text = base64.b64encode(pickled).decode()
    atomic_write_text(
        folder / f"{module}.py", _MODULE.format(title=title, name=cls.__name__, text=text)
    )
    sys.modules.pop(module, None)  # of an earlier call, with other values of what the code reads
    importlib.invalidate_caches()  # the folder may have been listed before
    return f"{module}:{cls.__name__}"


def read(text: str) -> type[Any]:
    """Return the class that `write_module` wrote."""
    from ray import cloudpickle

    return cloudpickle.loads(base64.b64decode(text))
