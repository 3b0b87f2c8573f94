"""The times of results/scaling.json to three digits, for who measured none."""

from __future__ import annotations

from .measured import LayerTime, Measured, Width

RECORDED = Measured(
    matmul=1.52e11,
    widths=(
        Width(
            64,
            LayerTime(0.000641, 2.3e-06, 0.00051, 2.54e-06, 7.37e04),
            LayerTime(0.000967, 4.11e-06, 0.000899, 4.3e-06, 1.15e05),
        ),
        Width(
            512,
            LayerTime(0.00337, 5.69e-05, 0.00303, 0.000103, 6.36e06),
            LayerTime(0.00332, 7.86e-05, 0.00291, 0.000144, 8.52e06),
        ),
    ),
    adam=2.91e-09,
    loader=5.2e05,
    index_seconds=1.78e-07,
    index_bytes=86.2,
    write=4.28e08,
    read=5.08e08,
    environment={"hardware": "CPU, 2 cores: Intel(R) Xeon(R) Processor", "commit": "39dd253a4b"},
    settings={"turns": 15, "length": 32},
)
