"""Rounds of updates given as one Gram matrix per layer: attack them, measure rules, search for the worst lie."""
