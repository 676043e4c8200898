"""The demo: a real server on the CPU that switches while its load rises and falls.

* :mod:`~specswitch.demo.load` requests whose number in flight follows a plan
* :mod:`~specswitch.demo.sampler` what ``/server_info`` and the client saw, a few times a second
* :mod:`~specswitch.demo.events` the JSON lines in a server's log
* :mod:`~specswitch.demo.report` all of it as one report: checks, rows of the table, ``report.json``
* :mod:`~specswitch.demo.picture` the report as a picture
* :mod:`~specswitch.demo.run` the servers, in order
"""
