"""The slow loop beside a running job: what brings rails back. Decides nothing that the fast loop waits for."""
