"""Gates in motion."""
