"""A report against limits and a policy."""
