"""A guest machine whose kernel has soft RDMA (rdma_rxe), for tests; see docs/rdma-guest.md.

``python -m tools.rdma_guest -- COMMAND`` from the project's root. ``packages.sh`` gets what it needs, ``kernel`` the kernel,
``machine`` runs a command in it. ``rails`` and ``faults`` work inside the guest: they lay the rails and break them.
"""
