"""A Linear layer that waits for initialisation: torch's own draws each weight in vain."""

from torch import nn


class Linear(nn.Linear):
    """nn.Linear whose values are undefined until initialisation.visit.initialize or a checkpoint fills them."""

    def reset_parameters(self) -> None:
        """Left to initialisation/visit.py, which visits every parameter and raises on one it does not know."""
