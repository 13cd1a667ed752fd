"""How long a process waits before it tries again, or looks again: with jitter, so that rivals part.

Nothing is decided by these pauses. How often or how long something is tried is the caller's rule.
"""

from __future__ import annotations

import random
import time


def growing(attempt: int, first: float, longest: float) -> None:
    """Sleep after a lost attempt, counted from 0: up to `first` seconds, doubled for each attempt.

    It is at most `longest`, and at least a fifth of the bound.
    """
    time.sleep(random.uniform(0.2, 1.0) * min(longest, first * 2.0**attempt))


def shrinking(lost: int, first: float, shortest: float = 0.01) -> None:
    """Sleep after `lost` lost rounds: at most `first` seconds divided by them.

    Who lost often gets its turn sooner; a round is long, and who sleeps loses it.
    """
    time.sleep(random.uniform(0.1, 1.0) * max(shortest, first / lost))


def poll(seconds: float) -> None:
    """Sleep before another look at something that another process changes, about `seconds`."""
    time.sleep(random.uniform(0.5, 1.0) * seconds)
