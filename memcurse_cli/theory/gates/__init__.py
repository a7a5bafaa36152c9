"""Recurrences whose gates move."""
