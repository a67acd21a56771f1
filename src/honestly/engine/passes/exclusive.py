"""One thread at a time does what concerns a whole CUDA device."""

from threading import RLock

# Waiting for the whole device, or loading code onto it, spoils a graph that another thread is capturing.
WHOLE_DEVICE = RLock()
