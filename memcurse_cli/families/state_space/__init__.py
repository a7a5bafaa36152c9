"""State-space layers: discretized linear recurrences."""
