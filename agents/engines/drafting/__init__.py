"""Parts shared by all engines: the drafting session over the draft store, and draws that depend on a seed."""
