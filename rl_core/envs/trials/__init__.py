"""Trials of rows before a run: each row's environment is built in a process of its own, and some
are played with the right, a wrong and an empty answer."""
