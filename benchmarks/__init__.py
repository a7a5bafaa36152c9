"""Measured figures: whole processes, each in turn with a named peer, as a ratio."""
