"""Bytes that nobody vouches for: bounded reads, archives, compression, names."""
