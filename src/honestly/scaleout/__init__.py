"""A robust average for Scaleout (and FEDn): one self-contained class, written by `honestly export scaleout`."""

from honestly.scaleout.export import server_functions

__all__ = ["server_functions"]
