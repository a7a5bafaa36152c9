"""Autocorrelations of inputs, and mixtures fitted to them."""
