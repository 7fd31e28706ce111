"""What several environments share: reading answers, checking expressions, and later sandbox, SQL and search."""
