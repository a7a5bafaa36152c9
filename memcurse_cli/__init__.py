"""Diagnose the curse of memory in trained recurrent and state-space checkpoints."""
