"""What a report advises, done."""
