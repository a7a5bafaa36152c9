"""Recurrences whose decay depends on the input: one law each."""
