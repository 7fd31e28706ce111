"""The policy behind an OpenAI-compatible API: `rl-train serve`."""
