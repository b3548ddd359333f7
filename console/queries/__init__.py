"""Queries: functions that read data for pages and the API. They write nothing."""
