"""Functions on a store, for weights that are stored otherwise than their layer multiplies."""

from __future__ import annotations

from memcurse_cli.checkpoints.rewrites.adapters import unwrap_adapters
from memcurse_cli.checkpoints.rewrites.aliases import restore_names
from memcurse_cli.checkpoints.rewrites.reparametrized import compute_weights

REWRITES = (restore_names, unwrap_adapters, compute_weights)
"""In the order in which they apply: a part may have a name that was left out, or an adapter's."""
