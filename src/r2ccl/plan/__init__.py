"""Plans: what moves between ranks. Pure functions of values: no socket, no clock, no thread, no extension.

One file per family of algorithms builds plans through ``builder``; ``verify`` proves them, ``cost`` times them and
``select`` chooses. Nothing here imports topology discovery, health or the native core.
"""
