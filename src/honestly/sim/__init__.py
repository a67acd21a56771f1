"""Federated learning in one process: data, clients, attacks and rounds.

Nothing heavy is imported here: `honestly.sim.attacks` needs NumPy alone, the rest PyTorch.
"""
