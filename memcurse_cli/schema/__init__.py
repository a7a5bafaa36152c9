"""Every document that is written or read: its fields, its JSON and the schema of that."""
