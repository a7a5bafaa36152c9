"""Every document that is written or read: dataclasses, JSON and its schema."""
