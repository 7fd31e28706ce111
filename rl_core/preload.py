"""Imports what takes workers longest, whatever they train. Ray does so in a process before there is work for it."""

from importlib import import_module

from rl_core.quick_imports import quick_imports

with quick_imports():
    for name in ("rl_core.distributed.worker", "rl_core.trainers.text", "transformers.modeling_utils", "peft"):
        import_module(name)
