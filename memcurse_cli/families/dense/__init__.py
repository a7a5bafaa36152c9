"""Recurrences by a dense matrix."""
