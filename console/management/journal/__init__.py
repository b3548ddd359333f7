"""Parts of `manage.py journal`: what all sub-commands share, and looking through the log."""
