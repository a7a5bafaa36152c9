"""The report as one self-contained HTML file: `to_html` in `document`."""
