"""Code that tries to get out of a sandbox."""

ORPHAN = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        for d in range(3): os.close(d)
        time.sleep(600)
    os._exit(0)
os.wait()
print("left")
"""
"""Tries to outlive the process that runs it."""

CHANNEL = """
import json, os, struct, time

def frame(message):
    payload = json.dumps(message).encode()
    return struct.pack("!I", len(payload)) + payload

def send(data):
    for d in range(3, 64):
        try: os.write(d, data)
        except OSError: pass

"""
"""Speaks to every descriptor that it finds."""
