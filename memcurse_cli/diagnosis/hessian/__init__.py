"""Hessians of layers and models."""
