"""Forms in which model families write calls of tools, one per file."""
