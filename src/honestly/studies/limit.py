"""A time limit for a study's workers, as in a cluster's queue: they start nothing that would not end in time."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from honestly.studies.study import StudyError

#: Rounds differ in length: the next one is expected to take up to this many times the longest so far.
MARGIN = 1.25
NUMBER = r"\d+(?:\.\d+)?"
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}


class OutOfTimeError(Exception):
    """The time limit is near; all rounds so far are finished and saved."""


@dataclass
class TimeLimit:
    """The time limit of one worker. It learns how long a round takes, and stops before a round would be cut off.

    Attributes:
        ends: when the work must have ended, in seconds since 1970: a process passes it to others.
        longest: the longest time between two checks so far, which is that of a round with what precedes it.
        last: when the limit was checked last.
    """

    ends: float
    longest: float = 0.0
    last: float = field(default_factory=time.time)

    def check(self) -> None:
        """Raise OutOfTimeError if another round would take too long. Call it before each run and after each round."""
        now = time.time()
        self.longest, self.last = max(self.longest, now - self.last), now
        if now + MARGIN * self.longest >= self.ends:
            raise OutOfTimeError


def seconds_of(text: str) -> float:
    """A duration as people write it.

    >>> seconds_of("560"), seconds_of("9m"), seconds_of("1.5h"), seconds_of("1h30m")
    (560.0, 540.0, 5400.0, 5400.0)
    """
    parts = re.findall(rf"({NUMBER})(min|[smhd])", text)
    bare_number = re.fullmatch(NUMBER, text) is not None
    seconds = float(text) if bare_number else sum(float(number) * UNITS[unit] for number, unit in parts)
    if not seconds or not (bare_number or "".join(number + unit for number, unit in parts) == text):
        raise StudyError(f"--stop-after {text}: write a duration such as 560, 9m, 1.5h or 1h30m")
    return seconds
