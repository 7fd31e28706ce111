"""Reports about runs: self-contained HTML pages with curves, tables, pictures and lineage."""
