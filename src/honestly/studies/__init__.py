"""Studies: which rule withstands what, and how well."""
