"""Steps of one model on one machine, for simulations without a calibration of their own."""

from __future__ import annotations

from llamalane.bench.simulator.speed import Speed, SpeedPoint

DEFAULT_SPEED = Speed(
    [
        SpeedPoint(0, 16, 0.048),
        SpeedPoint(0, 64, 0.18),
        SpeedPoint(0, 256, 0.73),
        SpeedPoint(0, 512, 1.5),
        SpeedPoint(1, 0, 0.0085),
        SpeedPoint(7, 0, 0.032),
        SpeedPoint(7, 16, 0.082),
        SpeedPoint(7, 64, 0.22),
        SpeedPoint(7, 256, 0.79),
        SpeedPoint(8, 0, 0.039),
    ]
)
"""SmolLM2-135M-Instruct (Q4_1), 8 places, on 2 cores without a GPU; rounded."""
