"""Layers of dense recurrent matrices."""
