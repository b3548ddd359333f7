"""What the control plane may see and ask of a broker, over a Unix socket."""
