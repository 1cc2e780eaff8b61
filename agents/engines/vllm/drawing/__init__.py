"""Drawing of tokens inside vLLM's workers, by turntree's noise: sampled, drafted and given ones.

Not here: what is proposed (``drafter``).
"""
