"""Records with several places in one layer: words of a text, or windows of a picture.

The gradient of such a record is a sum of products, one a place. Its squared norm is
Σ (x_s·x_t)(d_s·d_t) over pairs of places (Li et al. 2022, section 4); where the sum itself is
smaller or cheaper than the pairs, it is written down.

House rule: pairs are taken in float64, and what their rounding may hide is added. Places may
cancel each other, and a norm that comes out too small is a broken promise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from consortium.torch.private_rows import row_squares, without

_PAIRS_COST = 4  # of a product in float64 that has to be made first, in products of float32
# Of the square of what places would give that do not cancel: a sum of pairs in float64 may be
# off by some 2**-52 of it, a sum of products in float32 by 2**-24, which is 2**-48 squared.
_HIDDEN = {torch.float64: 2.0**-48, torch.float32: 2.0**-44}


class Places:
    """A linear layer or a convolution whose records have several places, at each of them an
    input (i,) and an output gradient (o,)."""

    def __init__(
        self,
        weight: Tensor | None,
        bias: Tensor | None,
        split: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]],
        sizes: tuple[int, int, int],
    ) -> None:
        """`split` makes (n, places, i) of the input, and (n, places, o) of d; `sizes` are
        places, i and o."""
        self.weight, self.bias = weight, bias
        self.inputs, self.outputs = split
        places, n_in, n_out = sizes
        self.takes_pairs = _PAIRS_COST * places * (n_in + n_out) < n_in * n_out
        pairs = 4 * places * places + 2 * places * (n_in + n_out)  # float64 takes the room of two
        self.written_numbers = places * n_in + (pairs if self.takes_pairs else n_in * n_out)
        self.x: Tensor
        self.d: Tensor
        self.written: Tensor  # the records' gradients, if they are not found by pairs

    def keep(self, x: Tensor) -> None:
        self.x = x

    def squares(self, d: Tensor) -> Tensor:
        self.d = self.outputs(d)
        total = torch.zeros(len(d), dtype=torch.float64)
        if self.bias is not None:
            total += row_squares(self.d.sum(1))
        if self.weight is None:
            return total
        self.x = self.inputs(self.x)
        if self.takes_pairs:
            return total.add_(_by_pairs(self.x, self.d))
        self.written = torch.bmm(self.d.transpose(1, 2), self.x)  # (n, o, i)
        return total.add_(row_squares(self.written))

    def leave_out(self, is_bad: Tensor) -> None:
        self.x, self.d = without(self.x, is_bad), without(self.d, is_bad)
        if self.weight is not None and not self.takes_pairs:
            self.written = without(self.written, is_bad)

    def add(self, factors: Tensor) -> None:
        if self.bias is not None:
            self.bias.add_(factors @ self.d.sum(1))
        if self.weight is None:
            return
        if self.takes_pairs:
            scaled = self.d * factors.view(-1, 1, 1)
            found = torch.mm(scaled.flatten(0, 1).t(), self.x.flatten(0, 1))
        else:
            found = factors @ self.written.flatten(1)
        self.weight.add_(found.view(self.weight.shape))


def _by_pairs(x: Tensor, d: Tensor) -> Tensor:
    """Σ (x_s·x_t)(d_s·d_t) of each record, or a little more than that."""
    inputs, outputs = x.double(), d.double()
    ours, theirs = (torch.bmm(one, one.transpose(1, 2)) for one in (inputs, outputs))
    hidden = row_squares(inputs).mul_(row_squares(outputs)).mul_(_HIDDEN[d.dtype])
    return ours.mul_(theirs).sum((1, 2)).clamp_(min=0.0).add_(hidden)
