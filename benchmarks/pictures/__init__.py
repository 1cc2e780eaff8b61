"""The SVG pictures of docs/, which ``benchmarks/picture.py`` writes.

``sheet`` has the colours, axes and lines that all pictures share. No module here reads files or measures anything.
"""
