"""NumPy's own files: .npy and .npz."""
