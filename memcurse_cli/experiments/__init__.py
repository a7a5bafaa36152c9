"""Experiments: the networks, signals and training runs behind the sample checkpoints."""
