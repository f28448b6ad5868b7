"""Is a tumour malignant? A small network, on everything that each hospital measures.

The first layer is private: it never leaves, so hospitals may have different columns. The
rest has one shape everywhere and is learnt together.
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


@co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
def study(site):
    train, test = co.read_csv(site.data, label="malignant", test=0.5, scale="site")
    return Net(train.n_features, train.n_classes), train, test
