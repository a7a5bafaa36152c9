"""The error of a state that is kept in few bits: told by `memcurse`, and seen by rounding it."""
