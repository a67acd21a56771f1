"""All presentation: text, tables, figures, pages and the live page."""
