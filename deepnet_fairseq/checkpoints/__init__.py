"""Checkpoints that survive: saved whole or not at all, verified when they are read, in time when a signal comes.

atomic.py writes a file, integrity.py verifies one, choice.py says which one to resume from; saving.py, background.py
and retention.py are a training's saves; process_state.py, data_order.py, half_precision.py and catching_up.py are what
else it takes to go on exactly; signals.py and training.py stop it. docs/checkpoints.md.
"""


def install() -> None:
    """Patches fairseq's saving, loading and training loop; may be called again."""
    from . import data_order, half_precision, process_state, saving, signals, training

    data_order.install()
    half_precision.install()
    process_state.install()
    saving.install()
    signals.install()
    training.install()
