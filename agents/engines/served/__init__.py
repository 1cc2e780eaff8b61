"""Parts shared by the vLLM and SGLang engines: requests, scoring, precomputed turns, and drafters in their processes.

Nothing here imports either engine, since the engines' own processes import this package.
"""
