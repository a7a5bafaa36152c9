"""Checkpoint formats: bytes on disk become named tensors, read lazily."""
