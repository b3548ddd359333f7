"""Pages of the console, one module per page.

Each view reads a request, calls queries or services, and renders a page.
"""
