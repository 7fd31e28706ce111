"""A page to chat with, or draw with, two models side by side; `rl-train serve-demo`."""
