"""Code shared by environments: reading answers, comparing them, and the tools that a model may
call."""
