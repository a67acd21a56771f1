"""Rounds of updates known by one Gram matrix for each layer: attacked, measured, and searched for the worst lie."""
