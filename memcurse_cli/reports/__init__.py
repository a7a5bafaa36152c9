"""From a report to a reader: terminal and machine formats."""
