"""The slowest imports of a worker, whatever it trains, in the process that workers are forked
from."""

from importlib import import_module

from rl_core.runtime.fast_imports import fast_imports

with fast_imports():
    for name in (
        "rl_core.distributed.worker",
        "rl_core.trainers.domains.text",
        "transformers.modeling_utils",
        "peft",
        # Of what Ray imports in the fork, the packages that read no settings.
        "google.protobuf.json_format",
        "jsonschema",
        "msgpack",
        "requests",
    ):
        import_module(name)
