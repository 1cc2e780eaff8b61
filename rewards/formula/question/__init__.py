"""What a question asks for, and answers that only repeat it: its formulas, the form it asks for, forms of trees.

Not here: the comparison of an answer with the gold answer.
"""
