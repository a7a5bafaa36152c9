"""Mean-field theory of wide networks."""
