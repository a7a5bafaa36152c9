"""Stores seen otherwise: adapters merged, aliases, reparametrised and quantised weights."""
