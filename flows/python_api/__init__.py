"""The Python API of notebooks and scripts, which `rl_core` offers under its own name."""
