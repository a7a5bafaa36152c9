"""The S4 layers and their descendants."""
