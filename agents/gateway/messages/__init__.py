"""Anthropic's Messages API: a translation onto the gateway's chats, with the same turns, sessions and episodes.

Not here: sampling, prompts and sessions (``gateway``), which know one kind of chat.
"""
