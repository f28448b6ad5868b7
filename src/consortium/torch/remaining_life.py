"""How long a machine will still run, from the last readings of its sensors."""

from __future__ import annotations

from torch import Tensor, nn


class RemainingLife(nn.Module):
    """An LSTM over a window of readings, and one number from its last step.

    Windows may have any length, the same within a batch: pad at the front what is shorter.
    """

    def __init__(
        self, n_sensors: int, hidden: int = 128, layers: int = 2, dropout: float = 0.2
    ) -> None:
        super().__init__()
        between = dropout if layers > 1 else 0.0  # torch drops out between layers only
        self.lstm = nn.LSTM(n_sensors, hidden, layers, batch_first=True, dropout=between)
        self.head = nn.Linear(hidden, 1)

    def forward(self, windows: Tensor) -> Tensor:
        """(n, window, n_sensors) -> (n,)"""
        steps, _ = self.lstm(windows)
        life: Tensor = self.head(steps[:, -1]).squeeze(1)
        return life
