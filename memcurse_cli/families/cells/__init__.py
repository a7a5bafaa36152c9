"""Gated cells of every library: blocks of matrices in an order."""
