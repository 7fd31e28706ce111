"""The data sources that a recipe can name in `data.source`.

A data source is a class made of the prepared rows of a run, the number of prompts in a step and the
recipe's seed, in this order; one with a `Config` also gets it, as the keyword `config`. Its methods
are those of `prompt_source.DataSource`.
"""

from typing import Any

from rl_core.runtime.registry import Registry

data_sources: Registry[Any] = Registry("data source", "rl_core.data.order")
METHODS = ("next_batch", "state_dict", "load_state_dict")
"""Names of the methods that a data source must have."""
