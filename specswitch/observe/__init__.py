"""Listeners that report: the log and the status in ``/server_info``.  Nothing here decides."""
