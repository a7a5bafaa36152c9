"""Eigendecompositions, Lanczos and Cholesky, on a CPU or a GPU."""
