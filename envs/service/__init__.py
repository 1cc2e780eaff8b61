"""Customer service: a fictional airline, and tau-bench's shop and airline (Yao et al. 2024, arXiv:2406.12045)."""
