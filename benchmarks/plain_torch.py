"""The base of `benchmarks.simulation`: federated averaging as a careful user writes it.

Two forked processes of one thread each stay for the whole run. A process has one model and one
`torch.optim.SGD`, trains its half of the cohort client after client, and adds up what comes out
in shared memory; the parent makes the weighted mean. Where clients keep tensors for themselves,
a process keeps one model for each of its clients, and only the other tensors are averaged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self, cast

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from benchmarks.workloads import Records, Setting, Study, count_right

PROCESSES = 2


@dataclass(frozen=True, slots=True)
class _Bench:
    """A model with its optimiser, which has no memory of its own and so serves every round."""

    model: nn.Module
    optimizer: torch.optim.SGD
    shared: list[nn.Parameter]

    @classmethod
    def of(cls, study: Study, client: int) -> Self:
        inputs, _ = study.train[client]
        model = study.build(inputs)
        optimizer = torch.optim.SGD(model.parameters(), lr=study.setting.lr)
        named = model.named_parameters()
        return cls(model, optimizer, [p for name, p in named if study.is_shared(name)])

    def load(self, flat: Tensor) -> None:
        with torch.no_grad():
            for parameter, values in zip(self.shared, self._parts(flat), strict=True):
                parameter.copy_(values.view_as(parameter))

    def add_to(self, flat: Tensor, weight: float) -> None:
        with torch.no_grad():
            for parameter, values in zip(self.shared, self._parts(flat), strict=True):
                values.add_(parameter.view(-1), alpha=weight)

    def train(self, records: Records, setting: Setting) -> None:
        self.model.train()
        for _ in range(setting.epochs):
            order = torch.randperm(len(records[1]))
            batches = (torch.split(part[order], setting.batch_size) for part in records)
            for inputs, targets in zip(*batches, strict=True):
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own
                self.optimizer.step()

    def _parts(self, flat: Tensor) -> Sequence[Tensor]:
        return torch.split(flat, [parameter.numel() for parameter in self.shared])


class PlainLoop:
    """A federation of plain torch. `play` is one round."""

    def __init__(self, study: Study, *, seed: int = 0, processes: int = PROCESSES) -> None:
        self._study = study
        self._draws = np.random.default_rng(seed)
        torch.manual_seed(seed)
        first = _Bench.of(study, 0).shared
        self._model = _in_shared_memory(torch.cat([p.detach().view(-1) for p in first]))
        self._sums = _in_shared_memory(torch.zeros(processes, len(self._model)))
        self._pipes: list[Connection] = []
        self._processes = []
        context = mp.get_context("fork")  # the clients' data is there already, without a copy
        for number in range(processes):
            ours, theirs = context.Pipe()
            arguments = (study, seed + number, theirs, self._model, self._sums[number])
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def play(self) -> float:
        """One round; the seconds that it took."""
        begun = time.perf_counter()
        setting = self._study.setting
        cohort = self._draws.choice(setting.clients, setting.cohort, replace=False)
        weights = self._ask("train", self._shares(cohort.tolist()))
        torch.sum(self._sums, 0, out=self._model).div_(sum(weights))
        return time.perf_counter() - begun

    def accuracy(self) -> float:
        """Of the held-out records, each by the model of the client that it belongs to."""
        counts = [len(targets) for _, targets in self._study.held_out.values()]
        return sum(self._ask("test", self._shares(sorted(self._study.held_out)))) / sum(counts)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(("stop", []))
        for process in self._processes:
            process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.close()

    def _shares(self, clients: Sequence[int]) -> list[list[int]]:
        """Who trains whom: half of them each, but a client that keeps something stays where
        it is kept."""
        count = len(self._pipes)
        if self._study.private:
            return [[one for one in clients if one % count == rank] for rank in range(count)]
        return [list(clients[rank::count]) for rank in range(count)]

    def _ask(self, what: str, shares: Sequence[Sequence[int]]) -> list[float]:
        for pipe, clients in zip(self._pipes, shares, strict=True):
            pipe.send((what, clients))
        return [pipe.recv() for pipe in self._pipes]


def _in_shared_memory(values: Tensor) -> Tensor:
    return cast(Tensor, values.share_memory_())  # type: ignore[no-untyped-call]  # torch's own


def _serve(study: Study, seed: int, pipe: Connection, model: Tensor, total: Tensor) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    kept: dict[int, _Bench] = {}
    while True:
        what, clients = pipe.recv()
        if what == "stop":
            return
        answer = 0.0
        total.zero_()
        for client in clients:
            bench = _bench(study, kept, client)
            bench.load(model)
            if what == "test":
                answer += count_right(bench.model, study.held_out[client])
                continue
            bench.train(study.train[client], study.setting)
            weight = len(study.train[client][1])
            bench.add_to(total, weight)
            answer += weight
        pipe.send(answer)


def _bench(study: Study, kept: dict[int, _Bench], client: int) -> _Bench:
    place = client if study.private else 0
    if place not in kept:
        kept[place] = _Bench.of(study, client)
    return kept[place]
