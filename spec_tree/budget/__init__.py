"""Draft budgets: how many nodes a step drafts, learned from the cost of steps and the acceptance of drafts."""
