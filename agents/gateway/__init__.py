"""``turntree serve``: OpenAI's and Anthropic's APIs in front of an engine, with dialogues recorded as episodes.

Not here: sampling (``engines``), the client of chat servers (``engines/chat_server.py``), and the HTTP servers that
vLLM and SGLang bring.
"""
