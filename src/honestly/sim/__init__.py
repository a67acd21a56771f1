"""Federated learning in one process: data, clients, attacks and rounds."""
