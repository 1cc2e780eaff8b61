"""The stages of ``gpu.py``, one module each, and how they are run and printed."""
