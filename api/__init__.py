"""The doors of the control plane: REST under /api/v1, and the live feed's WebSocket. Calls services and queries, nothing else."""
