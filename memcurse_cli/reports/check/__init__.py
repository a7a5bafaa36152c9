"""What check says: terminal, GitHub annotations, SARIF, JUnit."""
