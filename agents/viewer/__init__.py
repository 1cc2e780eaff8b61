"""One HTML file that shows a run: its episodes, their tokens, the trees of its states, its curves."""

from turntree.agents.viewer.page import view

__all__ = ["view"]
