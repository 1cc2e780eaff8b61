"""One forward pass of a Hugging Face decoder over the slots of live requests and their drafts.

Not here: which request runs, and what is drawn from the logits.
"""
