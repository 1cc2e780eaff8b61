"""Code that tries to outlive the process that runs it."""

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
