"""What people read about runs: self-contained HTML pages with their curves, tables, pictures and lineage."""
