"""How requests of turntree draw inside SGLang, and where SGLang's versions differ in it.

Not here: drafts and their verification (``worker``).
"""
