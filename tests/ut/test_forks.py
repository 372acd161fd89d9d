"""Forks while another thread imports a module of the package."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import importlib.abc, importlib.util, os, signal, sys, threading, time, warnings
import superkernel
warnings.simplefilter("ignore", DeprecationWarning)  # fork of a process with threads

begun = threading.Event()

class Slow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "superkernel.slow" else None

    def exec_module(self, module):
        begun.set()
        {inside}
        module.whole = True

sys.meta_path.insert(0, Slow())

def fork():
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        import superkernel.slow
        os._exit(0 if getattr(superkernel.slow, "whole", False) else 7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

"""


def said(inside: str, body: str) -> str:
    script = SCRIPT.format(inside=inside) + body
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_fork_waits_for_an_import_of_another_thread() -> None:
    """The child would wait for ever for a lock that nobody in it holds."""
    body = """
thread = threading.Thread(target=lambda: __import__("superkernel.slow"))
thread.start()
begun.wait()
fork()
thread.join()
"""
    assert said("time.sleep(0.3)", body) == "0"


def test_a_fork_within_an_import_does_not_wait_for_itself() -> None:
    """As where code that is loaded starts processes."""
    work = "began = time.monotonic(); child = os.fork(); child or os._exit(0); os.waitpid(child, 0); "
    work += "print(time.monotonic() - began < 9)"
    inside = f"exec(compile({work!r}, 'slow', 'exec'), {{**globals(), '__name__': 'superkernel.slow'}})"
    assert said(inside, "import superkernel.slow\n") == "True"
