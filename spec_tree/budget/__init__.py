"""Draft budgets: learn from step costs and acceptance how many nodes (draft-tree tokens) a step drafts."""
