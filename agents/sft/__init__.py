"""Supervised fine-tuning before reinforcement learning (``turntree sft``): demonstrations, and the loop that trains on
them. The demo's warm start uses the same loop. Not here: reinforcement learning, and models that need several devices.
"""
