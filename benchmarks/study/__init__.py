"""Parts of benchmarks/bayesian_study.py: each measures rules on recordings known by layer, and prints one table."""
