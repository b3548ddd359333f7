"""Control interface of a broker: status and requests of the control plane, over a Unix socket or TLS."""
