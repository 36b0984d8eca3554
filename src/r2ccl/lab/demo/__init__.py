"""``r2ccl-lab demo``: training that loses a NIC in mid-collective, in one picture.

A program of users on top of the lab and of the public API; nothing in the library imports it.
"""

from .command import main

__all__ = ["main"]
