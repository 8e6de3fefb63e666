"""Samples per second, smoothed: for progress lines of training scripts."""

from __future__ import annotations

import os
import time


class RateTracker:
    """Counts samples and tells how many there are per second.

    smooth_factor: weight of the past in `rate()`, from 0 (none) to below 1; `RATE_TRACKER_SMOOTHING`, or 0.4, by default.
    """

    def __init__(self, smooth_factor: float | None = None) -> None:
        default = float(os.environ.get("RATE_TRACKER_SMOOTHING", "0.4"))
        self._smooth_factor = default if smooth_factor is None else smooth_factor
        self._start = self._last = time.time()
        self._count = self._new = 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        """Counts `count` more samples."""
        self._count += count
        self._new += count

    def rate(self) -> float:
        """Samples per second since the last call, smoothed with what it gave then."""
        now = time.time()
        if now > self._last:
            current = self._new / (now - self._last)
            past = current if self._rate is None else self._rate
            self._rate = (1 - self._smooth_factor) * current + self._smooth_factor * past
            self._last, self._new = now, 0.0
        return self._rate or 0.0

    def global_rate(self) -> float:
        """Samples per second since the tracker was made."""
        elapsed = time.time() - self._start
        return self._count / elapsed if elapsed > 0 else 0.0
