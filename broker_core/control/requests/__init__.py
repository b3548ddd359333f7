"""The control plane's requests, by what they are about."""
