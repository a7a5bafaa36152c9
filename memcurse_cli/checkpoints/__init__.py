"""Checkpoint formats: bytes on disk become named tensors, read lazily.

What is wrong with a file is a `CheckpointError`, or within a format's reader a ValueError with the
fault as a clause, which `registry` completes with the file and what to do about it.
"""
