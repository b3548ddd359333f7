"""The console's pages, one module per page. Views read a request, call queries or services, and render; no more."""
