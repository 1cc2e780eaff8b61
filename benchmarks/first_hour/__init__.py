"""The stages of ``gpu.py``, the first hour on a GPU: what each measures (a module a stage), how it is run, and what is
printed. Not here: measurements that other scripts of the folder above have, which the stages call."""
