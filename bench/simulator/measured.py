"""Passes of one model on one machine, for simulations without a calibration of their own."""

from __future__ import annotations

from llamalane.bench.simulator.speed import Speed, SpeedPoint

DEFAULT_SPEED = Speed(
    [
        SpeedPoint(1, 1, 0, 0.0083),
        SpeedPoint(1, 1, 1000, 0.0113),
        SpeedPoint(2, 2, 0, 0.0152),
        SpeedPoint(3, 3, 0, 0.0191),
        SpeedPoint(4, 4, 0, 0.0231),
        SpeedPoint(6, 6, 0, 0.0318),
        SpeedPoint(8, 8, 0, 0.0371),
        SpeedPoint(1, 2, 0, 0.0117),
        SpeedPoint(1, 4, 0, 0.0182),
        SpeedPoint(1, 8, 0, 0.0293),
        SpeedPoint(1, 16, 0, 0.0514),
        SpeedPoint(1, 32, 0, 0.0966),
        SpeedPoint(1, 64, 0, 0.164),
        SpeedPoint(1, 64, 40_000, 0.284),
        SpeedPoint(1, 128, 0, 0.299),
        SpeedPoint(1, 256, 0, 0.727),
        SpeedPoint(1, 512, 0, 1.31),
    ],
    between=0.00014,
    output=0.00017,
)
"""SmolLM2-135M-Instruct (Q4_1), 8 places with parts of their own, on 2 cores without a GPU; rounded."""
