"""A model for hospitals that measure different things: each has an adapter of its own from
its features to a common space, and all share what comes after."""

from __future__ import annotations

from torch import Tensor, nn

from consortium.torch.marks import private

LATENT = 128  # the common space


def hospital_adapter(n_features: int) -> nn.Sequential:
    """From a hospital's own features (n, n_features) to the common space (n, 128)."""
    return nn.Sequential(
        nn.Linear(n_features, 64),
        nn.ReLU(),
        nn.BatchNorm1d(64),
        nn.Dropout(0.2),
        nn.Linear(64, LATENT),
        nn.ReLU(),
    )


class HospitalNet(nn.Module):
    """Private adapter, shared encoder (128, 256, 128) and shared head (128, 64, classes)."""

    def __init__(self, n_features: int, classes: int = 2) -> None:
        super().__init__()
        self.adapter = private(hospital_adapter(n_features))
        self.encoder = nn.Sequential(*_block(LATENT, 256), *_block(256, LATENT))
        self.head = nn.Sequential(
            nn.Linear(LATENT, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, classes)
        )

    def forward(self, features: Tensor) -> Tensor:
        """(n, n_features) -> (n, classes), logits."""
        logits: Tensor = self.head(self.encoder(self.adapter(features)))
        return logits


def _block(n_in: int, n_out: int) -> tuple[nn.Module, ...]:
    return nn.Linear(n_in, n_out), nn.ReLU(), nn.BatchNorm1d(n_out), nn.Dropout(0.3)
