"""Blocks of a reference and a candidate on a card that behaves as cards do. Seeded: the same series every time."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What disturbs calls, as fractions of a call's time.

    Attributes:
        call: Standard deviation of a single call.
        memory: How much of a call's deviation the next one keeps (autocorrelation).
        drift: Growth over the whole series, as a card warms up.
        spikes: Share of calls that something interrupts.
        spike: What an interruption multiplies the time with.
        step: Distance of two clock states; the card changes between them now and then.
        second: What running after the other side costs (a cache or a clock left in another state).
        tick_us: Resolution of the events.
    """

    call: float = 0.01
    memory: float = 0.0
    drift: float = 0.0
    spikes: float = 0.02
    spike: float = 1.5
    step: float = 0.0
    second: float = 0.0
    tick_us: float = 0.032


CALM = Noise()
SCENES = {
    "calm": CALM,
    "slow wander": Noise(memory=0.9),
    "warming up": Noise(drift=0.10),
    "two clock states": Noise(step=0.03),
    "interrupted": Noise(spikes=0.08, spike=1.3),
    "second costs": Noise(second=0.03),
    "all of it": Noise(memory=0.9, drift=0.05, step=0.01, second=0.01, spikes=0.04),
}


def blocks(
    generator: random.Random, noise: Noise, *, gain: float = 1.0, count: int = 20, calls: int = 10,
    base_us: float = 100.0,
) -> tuple[list[float], list[float]]:
    """Block medians of a reference of `base_us` and a candidate `gain` times faster, in the order of `measure.Timer`."""
    reference: list[float] = []
    candidate: list[float] = []
    wander, state, step = generator.gauss(0, 1), 1.0, 0
    for number in range(count):
        for place, side in enumerate("rc" if number % 2 == 0 else "cr"):
            times = []
            for _ in range(calls):
                wander = noise.memory * wander + math.sqrt(1 - noise.memory**2) * generator.gauss(0, 1)
                if generator.random() < 0.03:
                    state = generator.choice((1.0, 1 + noise.step))
                factor = math.exp(noise.call * wander) * state * (1 + noise.drift * step / (2 * count * calls))
                factor *= 1 + noise.second * place
                factor *= noise.spike if generator.random() < noise.spikes else 1.0
                time_us = base_us / (gain if side == "c" else 1.0) * factor
                times.append(max(1, round(time_us / noise.tick_us)) * noise.tick_us)
                step += 1
            (reference if side == "r" else candidate).append(median(times))
    return reference, candidate
