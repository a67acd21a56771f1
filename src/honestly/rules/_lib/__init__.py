"""What several rules share: small functions, no rule."""
