"""For ParaView 5.11 with Python 3.11: put this file's folder on PYTHONPATH on every rank.

That ParaView imports a name that Python 3.11 no longer has, and then loads no Python plug-in at
all.
"""

import inspect

if not hasattr(inspect, "getargspec"):
    inspect.getargspec = inspect.getfullargspec
