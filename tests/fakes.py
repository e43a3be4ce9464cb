"""A clock for tests that time nothing: it moves when it is told to."""

import numpy as np


class FakeClock:
    """Counts nanoseconds that `take` adds, and writes down what it was asked, in order.

    mark_ms: what a mark itself costs, so that marks can be seen in a result.
    """

    def __init__(self, mark_ms=0.0):
        self.now_ns = 0
        self.mark_ms = mark_ms
        self.asked = []

    def take(self, ms):
        self.now_ns += round(1e6 * ms)

    def mark(self):
        self.asked.append("mark")
        self.take(self.mark_ms)
        return self.now_ns

    def intervals_ms(self, marks):
        self.asked.append("read")
        return np.diff(marks) / 1e6

    def synchronize(self):
        self.asked.append("synchronize")
