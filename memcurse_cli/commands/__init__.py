"""One file per command: parse, call the line once, render."""
