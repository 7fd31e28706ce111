"""What this machine lacks, and what to do about it; `rl-train doctor`."""
