"""The Python API of notebooks and scripts, which `rl_core` offers under its own name."""

import os

from rl_core.runtime.home import SETTINGS

# Here, since the modules below import MLflow, which reads its settings then.
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)
