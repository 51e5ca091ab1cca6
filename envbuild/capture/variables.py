"""Environment variables by an allow-list."""

from __future__ import annotations

import os
from typing import Iterable

from envbuild.capture.redact import REDACTED, SECRET_NAME, scrub

VARIABLES = """
    CUBLAS_WORKSPACE_CONFIG CUDA_MODULE_LOADING CUDA_VISIBLE_DEVICES KERAS_BACKEND LD_LIBRARY_PATH LD_PRELOAD MKL_CBWR
    MKL_NUM_THREADS NVIDIA_TF32_OVERRIDE OMP_NUM_THREADS ONEDNN_MAX_CPU_ISA OPENBLAS_NUM_THREADS PYTHONHASHSEED
    TF_CUDNN_DETERMINISTIC TF_CUDNN_USE_AUTOTUNE TF_DETERMINISTIC_OPS TF_ENABLE_ONEDNN_OPTS TF_USE_LEGACY_KERAS
    TF_XLA_FLAGS XLA_FLAGS
    AIP_CHECKPOINT_DIR AIP_DATA_FORMAT AIP_EXPERIMENT_NAME AIP_EXPERIMENT_RUN_NAME AIP_MODEL_DIR AIP_TENSORBOARD_LOG_DIR
    AIP_TENSORBOARD_RESOURCE_NAME AIP_TEST_DATA_URI AIP_TRAINING_DATA_URI AIP_VALIDATION_DATA_URI
    CLOUD_ML_JOB_ID CLOUD_ML_PROJECT_ID CLOUD_ML_REGION CLOUD_ML_TRIAL_ID
"""
"""What changes the numbers or the libraries that compute them, and how Vertex AI names a run and its data."""


def recorded_variables(names: Iterable[str]) -> dict[str, str]:
    """Read the variables on the allow-list and those in `names`; of what names a secret, not the value."""
    wanted = sorted({*VARIABLES.split(), *names}.intersection(os.environ))
    return {name: REDACTED if SECRET_NAME.search(name) else scrub(os.environ[name]) for name in wanted}
