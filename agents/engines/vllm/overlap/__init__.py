"""Drafts under vLLM's asynchronous scheduling, on one rank of an accelerator.

vLLM schedules the next step while a step runs, before its drafts exist: the scheduler plans draft positions, and the
worker fills as many as the draft store can. CPUs, unchecked versions and several ranks draft synchronously instead
(``settings.speculative_config``).
"""
