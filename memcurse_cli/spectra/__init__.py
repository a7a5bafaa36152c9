"""Linear algebra on a device: eigendecompositions and the top of symmetric spectra."""
