"""vLLM as an engine of turntree, and turntree's drafter inside vLLM."""
