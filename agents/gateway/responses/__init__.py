"""OpenAI's Responses API, translated to the gateway's chat requests.

Not here: sampling, prompts and sessions (``gateway``).
"""
