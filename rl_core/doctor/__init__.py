"""Checks of this machine, with the fix for each problem; `rl-train doctor`."""
