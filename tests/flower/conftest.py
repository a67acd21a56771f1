"""The run that Flower's messages belong to, for all tests here."""

from flower_messages import inside_a_run

__all__ = ["inside_a_run"]
