"""How the ranks of a job find and authenticate each other, and how their connections come up.

Slow loop only: plain Python, everything bounded by a deadline. Imports config, errors and topology; nothing of plans,
health or the native core, which receives the connected descriptors.
"""

from .base import Bootstrap, Deadline, SingleBootstrap
from .env import env_bootstrap
from .resolve import resolve

__all__ = ["Bootstrap", "Deadline", "SingleBootstrap", "env_bootstrap", "resolve"]
