"""States of optimizers, beside the weights that they belong to."""
