"""Demo: a page to chat or draw with two models side by side; `rl-train serve-demo`."""
