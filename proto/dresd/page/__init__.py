"""Self-contained HTML pages: markup, sections, tables, bars and line charts. Knows nothing of what is shown."""
