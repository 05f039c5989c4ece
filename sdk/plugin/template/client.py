"""The same from Python: the generated module over the client's library."""

import ctypes
import os
import sys

sys.path.insert(0, "generated")
import sample

client = sample.Client(os.path.abspath("libsample.so"))
result, where, caller = client.sample_where()
print("asked by me:", "yes" if caller == os.getpid() else "no")
numbers = (ctypes.c_double * 3)(4, 1, 7)
print(f"mean {client.sample_mean(numbers)[1]:g}")
client.sample_sort(numbers)
print("sorted:", *(f"{number:g}" for number in numbers))
try:
    client.sample_mean(b"")
except OSError as error:
    print("of nothing:", error.strerror)
