"""SimulatedUser service: a fictional airline, and the database of tau-bench's shop (Yao et al. 2024, arXiv:2406.12045),
read from files by path."""
