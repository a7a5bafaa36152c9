"""A training run as a time series of reports."""
