"""Moments of states and of their derivatives."""
