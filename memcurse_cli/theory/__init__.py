"""The theory: numbers from eigenvalues, parameters and input statistics, on any array library."""
