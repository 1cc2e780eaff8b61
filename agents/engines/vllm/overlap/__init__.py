"""Drafts with vLLM's asynchronous scheduling, on one rank of an accelerator: its arguments, the scheduler, the drafter.

The next step is scheduled while a step runs, so drafts are promised before they exist: the scheduler plans places for
them, and the worker fills as many as the store has. Not here: how drafts are found (``drafter``), and the synchronous
way of CPUs, other versions and several ranks (``settings.speculative_config``).
"""
