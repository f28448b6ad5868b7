"""A small network: what every site computes, on its own CSV file.

`label` is the column to predict. One record in four is kept for testing. The first layer is
private: it never leaves a site, so sites may have different columns.
"""

import consortium as co
from torch import nn


class Net(nn.Module):
    def __init__(self, n_features, n_classes):
        super().__init__()
        self.adapter = co.private(nn.Linear(n_features, 16))
        self.shared = nn.Sequential(
            nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, n_classes)
        )

    def forward(self, x):
        return self.shared(self.adapter(x))


@co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy", "auroc"])
def study(site):
    train, test = co.read_csv(site.data, label="label", scale="site")
    return Net(train.n_features, train.n_classes), train, test
