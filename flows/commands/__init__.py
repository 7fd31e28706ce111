"""Commands of `rl-train`, a group per file; `flows.cli` puts them together."""
