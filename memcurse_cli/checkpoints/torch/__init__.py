"""What PyTorch stores: archives and pickles, of which nothing is executed."""
