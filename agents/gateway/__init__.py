"""``turntree serve``: OpenAI's and Anthropic's APIs in front of an engine, with dialogues recorded as episodes.

Not here: sampling (``engines``), the client of such servers (``engines/chat_server.py``), and the servers of vLLM and
SGLang.
"""
