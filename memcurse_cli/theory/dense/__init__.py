"""Dense recurrent matrices."""
