"""HDF5, and the Keras models stored in it."""
