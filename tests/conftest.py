"""What holds for every test: no blocking call on the event loop, hypothesis without deadlines, Ctrl-C that is heard.

In CI the examples of hypothesis are derived from the test alone, so that a run can be repeated; elsewhere they differ
from run to run, which finds more.
"""

import os
import signal

from hypothesis import HealthCheck, settings

from blocking import forbid_blocking_calls

forbid_blocking_calls()
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in jobs that a script starts with &; our processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A loaded machine must not fail a property for being slow; pytest-timeout catches what hangs.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
