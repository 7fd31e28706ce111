"""The wing for callers of verl's DataProto class: nothing in rl_core calls any of it.

The names are those of `rl_core.data_proto`, which is where to import them from.
"""
