"""What holds for the tests of all folders."""

import signal

# A shell that runs a command in the background, and nohup, make it ignore these signals. The
# programs that tests start would inherit that, and a shell cannot trap a signal that it was started
# to ignore.
for _ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_ignored) == signal.SIG_IGN:
        signal.signal(_ignored, signal.default_int_handler if _ignored == signal.SIGINT else signal.SIG_DFL)
