"""The client of the daemon; imports the standard library and msgspec at most, to start quickly.

client        calls of the daemon over HTTP
job_answers, site_answers   types of their answers, which the OpenAPI document describes, too
connection    a request to the daemon and its response
address       where the daemon is
unix_socket   connections to a daemon on this host
remote        connections to a daemon on another host
job_daemon    the daemon that dispatched the job of a command
credentials   tokens and MUNGE credentials for calls from another host
option_words  options among the words of a command line
options       the options of `submit`: names, values, help
directives    #SBATCH, #$, #PBS and #MS lines of a job script
job_request   the request that a command line, its script and the environment make
schemas       the bodies that `submit` sends
reservation_boxes   listed reservations and jobs as boxes of a chart
"""
