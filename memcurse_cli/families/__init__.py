"""Recurrent families: named tensors become a `Recurrence`."""
