"""`fork_bomb.py UID`: forks for ever, and so does all that comes of it; says so when the limit stops it.

root is held by no limit of processes, so as root it first becomes a user that has no other process.
"""

import os
import sys
import time

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
print("OK", flush=True)
sys.stdin.readline()
while True:
    try:
        os.fork()
    except OSError as error:
        os.write(1, b"LOG %s\n" % error.strerror.encode())
        time.sleep(60)
