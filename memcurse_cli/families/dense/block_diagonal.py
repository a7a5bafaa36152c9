"""A block-diagonal linear recurrence: one dense block per head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.dense.dense_layer import dense_recurrence
from memcurse_cli.families.dense.dense_rnn import STEPS
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.reading import complex_roles, read_readin, read_readout, read_real
from memcurse_cli.families.recurrence import Recurrence

HEAD = ".head"


class BlockDiagonalRNN:
    """``h_k[t+1] = A_k h_k[t] + B_k x[t+1]`` for every head k, ``y = Σ_k C_k h_k + D x``.

    No head sees another, so each is a dense layer of its own.
    """

    name = "block_diagonal"
    title = "Block-diagonal linear RNN"
    recognised_by = "real A (heads, n, n) beside B (heads n, inputs), and no step size"
    equation = "λ = eig(A_k) of each head k"
    source = "memcurse_cli.experiments; Zucchet & Orvieto 2024, section 2.2"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """A layer for each head of a module whose B has a row for each unit of each head."""
        roles = ("A", *complex_roles("B"), *complex_roles("C"), "D", *STEPS)
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            if not {"A", "B"} <= names.keys() or names.keys() & set(STEPS):
                continue
            spec = tensors[names["A"]]
            if len(spec.shape) != 3 or spec.shape[1] != spec.shape[2]:
                continue
            heads, size, _ = spec.shape
            if not spec.dtype.startswith("complex") and heads * size in tensors[names["B"]].shape:
                layer = module or self.name
                matches += [Match(f"{layer}{HEAD}{head}", names) for head in range(heads)]
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read one head's block, its rows of B and its columns of C.

        Raises:
            TensorError: NaN or inf, or matrices whose shapes do not fit together.
        """
        tensor = match.tensors["A"]
        shape = store.tensors[tensor].shape
        heads, size, _ = shape
        head = int(match.layer.rpartition(HEAD)[2])
        units = slice(head * size, (head + 1) * size)
        readin = read_readin(store, match.tensors, heads * size)
        readout = read_readout(store, match.tensors, heads * size)
        recurrence = dense_recurrence(
            store,
            match,
            family=self.name,
            matrix=read_real(store, tensor, shape)[head],
            tensor=tensor,
            activation="linear",
            device=options.device,
            readin=None if readin is None else readin[units],
            readout=None if readout is None else readout[:, units],
        )
        assert recurrence.dense is not None
        return replace(recurrence, dense=replace(recurrence.dense, heads=heads))
