"""Pictures, in characters and as files."""
