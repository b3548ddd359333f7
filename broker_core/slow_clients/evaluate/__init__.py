"""Evaluation of rules: signals in, decisions out, each with its explanation.

Pure. The broker, policy previews and back-tests share this code.
"""
