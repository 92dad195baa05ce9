"""Large databases with generated rows, for tests and benchmarks."""
