"""One HTML page of a run: episodes, tokens, prefix trees and curves."""

from turntree.agents.viewer.page import view

__all__ = ["view"]
