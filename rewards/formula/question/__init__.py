"""What a question says about its answer: its formulas, the form that it asks for, answers that only repeat it.

Not here: whether an answer is right.
"""
