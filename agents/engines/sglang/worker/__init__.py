"""Parts that run in SGLang's scheduler process: the plugin, the draft worker and its trees.

Not here: the engine and the client of a server, which send requests to that process.
"""
