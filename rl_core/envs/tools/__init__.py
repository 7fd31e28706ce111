"""What several environments share: reading answers, comparing them, and the tools a model may call."""
