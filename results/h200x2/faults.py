"""Kills or stops rank 1 of two at a random moment, and times what rank 0 says and when it ends.

python3 faults.py PATH/fa-bench kill|stop TIMES SEED
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time

COMMAND = "context --transport nccl-ce --seq 32768 --kv-heads 8 --patience 2 --check 0 --budget 60 --iterations 10000"


def ranks(program):
    """The processes of the program that are ranks."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = open(f"/proc/{pid}/environ", "rb").read().split(b"\0")
            is_ours = os.readlink(f"/proc/{pid}/exe") == os.path.realpath(program)
        except OSError:
            continue
        for variable in variables:
            if is_ours and variable.startswith(b"RANK="):
                found[int(variable[5:])] = int(pid)
    return found


def runs(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def turn(program, fault):
    parent = subprocess.Popen([program, *COMMAND.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    listener = threading.Thread(target=lambda: lines.extend((time.time(), line.rstrip()) for line in parent.stdout))
    listener.start()
    until = time.time() + 20
    while len(ranks(program)) < 2 and time.time() < until:
        time.sleep(0.02)
    time.sleep(random.uniform(2.5, 4.5))
    of = ranks(program)
    os.kill(of[1], signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    hit = time.time()
    while runs(of[0]) and time.time() - hit < 40:
        time.sleep(0.005)
    ended = time.time() - hit
    if runs(of[1]):
        os.kill(of[1], signal.SIGKILL)
    parent.wait()
    listener.join()
    said = [(at - hit, line) for at, line in lines if "rank 1" in line]
    after, line = said[-1] if said else (float("nan"), "nothing")
    print(f"{fault}: said after {after:.2f} s, ended after {ended:.2f} s, rc {parent.returncode}: {line}", flush=True)


if __name__ == "__main__":
    random.seed(int(sys.argv[4]))
    for _ in range(int(sys.argv[3])):
        turn(sys.argv[1], sys.argv[2])
