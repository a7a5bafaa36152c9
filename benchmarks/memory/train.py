"""Networks trained on adding and copying, whose memory is compared with the lag that they need."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

UNITS, BATCH, SYMBOLS = 32, 64, 8
LAGS = (10, 30, 100, 300, 500)
TASKS = ("adding", "copying")
RATE, CLIP = 3e-3, 1.0
STEPS = {10: 1500, 30: 1500, 100: 1500, 300: 1000, 500: 800}
# A run has learnt when what is left of its loss is below half of that of not remembering.
LEARNT = 0.5


class Network(NamedTuple):
    """A recurrent layer and how it is initialised."""

    cell: type[nn.RNNBase]
    forget_bias: float = 0.0
    scale: float | None = None  # of an orthogonal recurrent matrix; None as torch draws it


NETWORKS = {
    "LSTM": Network(nn.LSTM),
    "LSTM, forget bias 2": Network(nn.LSTM, forget_bias=2.0),
    "LSTM, forget bias 5": Network(nn.LSTM, forget_bias=5.0),
    "GRU": Network(nn.GRU),
    "tanh RNN": Network(nn.RNN),
    "tanh RNN, orthogonal": Network(nn.RNN, scale=1.0),
}


class Run(NamedTuple):
    """One network on one task."""

    network: str
    task: str
    lag: int

    @property
    def name(self) -> str:
        """That of its files."""
        return f"{self.network}-{self.task}-{self.lag}".replace(", ", "_").replace(" ", "_")


def runs() -> Iterator[Run]:
    """All of them, those of short lags first."""
    for lag, task, network in itertools.product(LAGS, TASKS, NETWORKS):
        yield Run(network, task, lag)


class Model(nn.Module):
    """A layer and a readout of its last state."""

    def __init__(self, network: Network, width: int, outputs: int) -> None:
        super().__init__()
        self.rnn = network.cell(width, UNITS, batch_first=True)
        self.readout = nn.Linear(UNITS, outputs)
        with torch.no_grad():
            if network.forget_bias:
                self.rnn.bias_ih_l0[UNITS : 2 * UNITS] = network.forget_bias
                self.rnn.bias_hh_l0[UNITS : 2 * UNITS] = 0.0
            if network.scale is not None:
                nn.init.orthogonal_(self.rnn.weight_hh_l0, network.scale)

    def forward(self, inputs: Tensor) -> Tensor:
        """(batch, outputs) after the last step."""
        return self.readout(self.rnn(inputs)[0][:, -1])


def batch(task: str, lag: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs (batch, lag + 1, width) and what is asked after the last step.

    Adding: the sum of two marked numbers, the first of which stands at the first step, the other
    in the second half. Copying: the symbol of the first step, under distractors ever after.
    """
    if task == "adding":
        numbers = torch.rand(BATCH, lag + 1, generator=random)
        marks = torch.zeros(BATCH, lag + 1)
        later = torch.randint((lag + 1) // 2, lag + 1, (BATCH,), generator=random)
        marks[:, 0] = 1.0
        marks[torch.arange(BATCH), later] = 1.0
        return torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(1, keepdim=True)
    symbols = torch.randint(SYMBOLS, (BATCH, lag + 1), generator=random)
    inputs = nn.functional.one_hot(symbols, SYMBOLS).float()
    first = torch.zeros(BATCH, lag + 1, 1)
    first[:, 0] = 1.0
    return torch.cat([inputs, first], dim=-1), symbols[:, 0]


def chance(task: str) -> float:
    """The loss of a network that has forgotten the first step."""
    return 1 / 12 if task == "adding" else float(torch.log(torch.tensor(float(SYMBOLS))))


def train(run: Run, folder: Path) -> None:
    """Write the layer before and after, and the losses of the last tenth."""
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    width, outputs = (2, 1) if run.task == "adding" else (SYMBOLS + 1, SYMBOLS)
    model = Model(NETWORKS[run.network], width, outputs)
    save_file(model.rnn.state_dict(), folder / f"{run.name}-before.safetensors")
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    loss_of = nn.functional.mse_loss if run.task == "adding" else nn.functional.cross_entropy
    losses = []
    for _ in range(STEPS[run.lag]):
        inputs, wanted = batch(run.task, run.lag, random)
        loss = loss_of(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(float(loss.detach()))
    save_file(model.rnn.state_dict(), folder / f"{run.name}-after.safetensors")
    last = losses[-len(losses) // 10 :]
    left = sum(last) / len(last) / chance(run.task)
    (folder / f"{run.name}.json").write_text(json.dumps({**run._asdict(), "left": left}))


def train_all(folder: Path) -> None:
    """Every run that the folder does not have."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs():
        if not (folder / f"{run.name}.json").exists():
            train(run, folder)
