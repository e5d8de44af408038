"""A reference Decoupled DiLoCo trainer: the system under test. It knows nothing of chaos."""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before numpy is first imported, or it has no effect
