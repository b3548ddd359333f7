"""Parts of `manage.py journal`: location of the log, and the sub-commands that search it."""
