"""What JAX's libraries store: Flax, Orbax, Equinox, Zarr."""
