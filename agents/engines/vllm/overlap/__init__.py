"""Drafts under vLLM's asynchronous scheduling, on one rank of an accelerator.

vLLM schedules the next step while a step runs, before the next step's drafts exist. The scheduler therefore only plans
draft positions, and the worker fills as many of them as the draft store has tokens for. On CPUs, with unchecked
versions of vLLM and on several ranks, turntree drafts synchronously instead (``settings.speculative_config``).
"""
