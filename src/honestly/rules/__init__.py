"""The rules: one rule or mixer, one file."""
