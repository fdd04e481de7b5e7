"""What holds for every test."""

import os

# One thread, here and in the processes that tests start: small models gain nothing from more, threads that wait for each
# other on a busy machine lose much, and sums are taken in the same order everywhere. torch reads this when it is imported.
os.environ["OMP_NUM_THREADS"] = "1"
