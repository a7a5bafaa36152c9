"""From numbers to a report: verdicts, findings and advice."""
