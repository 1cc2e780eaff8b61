"""``turntree serve``: a server with OpenAI's and Anthropic's APIs in front of an engine, and dialogues as episodes.

Not here: the sampling of tokens (``engines``), the client of such servers (``engines/chat_server.py``), and the
servers of vLLM and SGLang, which are theirs.
"""
