"""Callbacks for training loops: one file per library, which is imported only here."""
