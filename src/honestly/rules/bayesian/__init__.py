"""Bayesian robust aggregation: which clients to believe, layer by layer.

`rule.py` is the rule; `estimate.py` puts its steps in order: `views.py` (a centre and a unit in every layer),
`likeness.py` (who errs alike, who opposes), `average.py` (shortened errors, shared votes) and `guard.py` (the
guarantee). `compiled.py` asks a C program for the same numbers, `streamed.py` does the same for thousands of clients,
`paper.py` is the published rule.
"""

from honestly.rules.bayesian.rule import Bayesian

__all__ = ["Bayesian"]
