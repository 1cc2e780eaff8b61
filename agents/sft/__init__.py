"""Supervised fine-tuning on demonstrations before reinforcement learning (``turntree sft``).

The demo's warm start uses the same training loop. Not supported: models that need several devices.
"""
