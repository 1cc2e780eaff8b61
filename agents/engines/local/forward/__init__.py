"""One forward pass of a Hugging Face decoder over the slots of live requests and their drafts."""
